"""An unmodified Flower app on DeFL: no SuperLink, no server, and one member that attacks.

    python examples/flower_app.py [--rounds 4] [--out FOLDER]

The app is in examples/flower_app: a ServerApp and a ClientApp as any Flower project has them. Four
organisations run it here, each a process with its own key and disk. The model is then read and
verified as any third party would. Needs Flower. About twenty seconds on two cores.
"""

# %% Run the app: real processes, TLS between them, no coordinator
import argparse
import tempfile
from pathlib import Path

import defl

APP = Path(__file__).parent / "flower_app"


def main(rounds, out):
    result = defl.run(flower=APP, nodes=4, rounds=rounds, attacks={3: "sign_flip_10"}, out=out)
    print(f"\n{result}\n")
    result.plot("accuracy", path=out / "flower.png")

    # %% Use the model: arrays by name, digest checked
    folder = result.folder_of("node-0")
    weights = defl.load_model(folder)
    print({name: array.shape for name, array in weights.items()}, "\n")

    # %% Prove it to somebody who took no part: three files, offline
    proof = defl.verify(
        folder / "proven.safetensors", folder / "round-certificate.json", out / "federation.toml"
    )
    print(proof)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument("--out", type=Path)
    options = arguments.parse_args()
    main(options.rounds, options.out or Path(tempfile.mkdtemp(prefix="defl-flower-")))
