"""All errors of the project. The type of an error says whose fault it is.

DeflError
├── UserError              the request cannot be met; the message says what is allowed
│   ├── PreconditionBroken     an aggregation rule's condition does not hold
│   └── WeightsError           a client's weights do not fit the model's schema
│       └── Diverged               they hold NaN, infinity or a value beyond the bound
├── LocalFault             this node cannot continue as it is (disk, lost record)
│   ├── Exhausted              the machine ran out of a resource; the same call works later
│   │   ├── DiskFull               the disk is full
│   │   └── NoDescriptors          too many files and connections are open
│   ├── ChunkRotten            the disk no longer returns the bytes that were stored
│   └── SigningRefused         this node's own code asked its signer for a contradiction
├── BrokenLineage          a chain of epochs is not proven; names the epoch and the reason
├── WorkerFailed           a task failed; the message says why
└── PeerFault              a peer broke the protocol: record it, drop the message, carry on
    ├── Malformed              the bytes are not a canonical message within its bounds
    ├── WrongAuthor            the sender is not the author, or not a member
    ├── WrongEpoch             a statement from another epoch
    ├── BadSignature           a signature is not its author's over these fields
    ├── BadCertificate         fewer than q distinct signers, or an invalid signature among them
    ├── BadBlock               a block whose parts do not fit together
    └── BadBlob                an update that the schema, the offer or the bounds refuse
"""


class DeflError(Exception):
    """The root of all errors that this project raises."""


class UserError(DeflError):
    """The caller asked for something impossible; the message says what to do."""


class PreconditionBroken(UserError):
    """A rule's condition does not hold for the given numbers."""


class WeightsError(UserError):
    """Weights do not fit the schema; the message names the entry."""


class Diverged(WeightsError):
    """Weights of the right shapes hold NaN, infinity or a value beyond the bound."""


class LocalFault(DeflError):
    """This node's own state or machine is at fault."""


class Exhausted(LocalFault):
    """The machine ran out of a resource. Nothing was changed; the same call works once the
    resource is available again."""


class DiskFull(Exhausted):
    """The disk is full."""


class NoDescriptors(Exhausted):
    """This process, or the whole machine, has too many files and connections open."""


class ChunkRotten(LocalFault):
    """A stored chunk has changed on disk: it is discarded and no longer counts as held."""

    def __init__(self, digest: bytes, index: int) -> None:
        super().__init__(digest, index)
        self.digest = digest
        self.index = index

    def __str__(self) -> str:
        return f"blob {self.digest.hex()} is corrupt in chunk {self.index}"


class SigningRefused(LocalFault):
    """A signer was called for a statement that its record forbids: nothing was signed.

    Only a bug of ours raises it, since every caller checks first.
    """


class BrokenLineage(DeflError):
    """The given handovers do not prove how a federation's epochs followed each other."""

    def __init__(self, epoch: int, reason: str) -> None:
        super().__init__(epoch, reason)
        self.epoch = epoch
        self.reason = reason

    def __str__(self) -> str:
        return f"epoch {self.epoch}: {self.reason}"


class WorkerFailed(DeflError):
    """A task failed; the reason holds the traceback of the user's code."""


class PeerFault(DeflError):
    """A peer broke the protocol: record it, drop the message, carry on."""


class Malformed(PeerFault):
    """The bytes are not a canonical message within its bounds."""


class WrongAuthor(PeerFault):
    """The sender may not send this statement."""


class WrongEpoch(PeerFault):
    """A statement from an epoch other than the current one."""


class BadSignature(PeerFault):
    """The signature is not the claimed author's over these fields."""


class BadCertificate(PeerFault):
    """A certificate lacks q distinct signers or holds an invalid signature."""


class BadBlock(PeerFault):
    """A block whose parts do not fit together."""


class BadBlob(PeerFault):
    """An update's manifest or bytes break the schema, the offer or the bounds."""
