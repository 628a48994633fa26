"""Where the parts of a tensor lie along one dimension of a mesh."""


class Shard:
    """Split along tensor dimension `dim` over a mesh dimension, as torch.chunk does."""

    def __init__(self, dim):
        self.dim = int(dim)

    def __repr__(self):
        return f"S({self.dim})"

    def __eq__(self, other):
        return repr(self) == repr(other)

    def __hash__(self):
        return hash(repr(self))


class Replicate(Shard):
    """The whole on every rank of a mesh dimension."""

    def __init__(self):
        pass

    def __repr__(self):
        return "R"


class Partial(Shard):
    """A part on every rank of a mesh dimension; the value is their "sum", "avg", "product", "min" or "max"."""

    def __init__(self, reduce_op="sum"):
        self.reduce_op = reduce_op

    def __repr__(self):
        return f"P({self.reduce_op})"


def text_of(placements):
    """"S(0) R", as C++ reads it; None: no placements."""
    return " ".join(map(repr, placements or ()))


def placement_of(text):
    """Of "R", "S(1)" or "P(sum)"."""
    if text == "R":
        return Replicate()
    return Shard(int(text[2:-1])) if text[0] == "S" else Partial(text[2:-1])
