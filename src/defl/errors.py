"""Every error of the project; whose fault it is, is its type.

DeflError
├── UserError              what was asked for cannot be: says what is allowed
│   ├── PreconditionBroken     a rule was asked outside the condition that it needs
│   └── WeightsError           a client's weights do not fit the model's schema
│       └── Diverged               they hold NaN, infinity or a value beyond all bounds
├── LocalFault             this node cannot go on as it is (disk, lost record)
│   ├── Exhausted              the machine ran out of something; the same call works later
│   │   ├── DiskFull               there is no room on the disk
│   │   └── NoDescriptors          too many files and connections are open
│   ├── ChunkRotten            the disk no longer gives back the bytes that were stored
│   └── SigningRefused         this node's own code asked its signer for a contradiction
├── WorkerFailed           a piece of work was not done; says why
└── PeerFault              a peer broke the protocol: record it, drop the message, carry on
    ├── Malformed              the bytes are not a canonical message within its bounds
    ├── WrongAuthor            somebody speaks for another, or a stranger speaks
    ├── WrongEpoch             a statement of another epoch
    ├── BadSignature           a signature is not its author's over these very fields
    ├── BadCertificate         fewer than q distinct members, or a wrong signature among them
    ├── BadBlock               a block whose parts do not fit together
    └── BadBlob                an update that the schema, the offer or the bounds refuse
"""


class DeflError(Exception):
    """The root of all errors that the project raises on purpose."""


class UserError(DeflError):
    """The caller asked for something that cannot be; the message says what to do."""


class PreconditionBroken(UserError):
    """A rule's condition does not hold for the given numbers."""


class WeightsError(UserError):
    """Weights do not fit the schema; the message names the entry."""


class Diverged(WeightsError):
    """Weights of the right shapes hold NaN, infinity or a value beyond the bound."""


class LocalFault(DeflError):
    """This node's own state or machine stands in the way."""


class Exhausted(LocalFault):
    """The machine ran out of something: nothing was changed; the same call works once there is
    some again."""


class DiskFull(Exhausted):
    """There is no room on the disk."""


class NoDescriptors(Exhausted):
    """This process, or the whole machine, has as many files and connections open as it may."""


class ChunkRotten(LocalFault):
    """A stored chunk is not what it was: it is discarded, and no longer counted as held."""


class SigningRefused(LocalFault):
    """A signer was called for a statement that its record forbids: nothing was signed.

    Only a bug of ours leads here, since every caller asks first.
    """


class WorkerFailed(DeflError):
    """A piece of work was not done; the reason has the traceback of the user's code."""


class PeerFault(DeflError):
    """A peer broke the protocol: record it, drop the message, carry on."""


class Malformed(PeerFault):
    """The bytes are no canonical message within its bounds."""


class WrongAuthor(PeerFault):
    """The claimed author is not the one who may say this."""


class WrongEpoch(PeerFault):
    """A statement of an epoch that is not the current one."""


class BadSignature(PeerFault):
    """The signature is not the claimed author's over these fields."""


class BadCertificate(PeerFault):
    """A certificate lacks q distinct members or holds a wrong signature."""


class BadBlock(PeerFault):
    """A block whose parts do not fit together."""


class BadBlob(PeerFault):
    """An update's manifest or bytes break the schema, the offer or the bounds."""
