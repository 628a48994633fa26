"""What the daemon tells of placing a call: client.proto's Explanation and RedistributionList, read from JSON."""
from ._placement import Partial, Replicate, Shard

_REDUCE_OPS = {"REDUCE_OP_SUM": "sum", "REDUCE_OP_AVG": "avg", "REDUCE_OP_PRODUCT": "product", "REDUCE_OP_MIN": "min",
               "REDUCE_OP_MAX": "max"}


def _placement(wire):
    if "shard" in wire:
        return Shard(wire["shard"])
    return Partial(_REDUCE_OPS[wire["partial"]]) if "partial" in wire else Replicate()


def _placements(wire):
    return [_placement(each) for each in wire]


class Redistribution:
    """A tensor that is moved: its number among the call's tensors, from where to where, the bytes that a rank receives,
    and by which collectives ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"). Of those that have been made:
    the operator whose input it was ("redistribute" and "gradient": it was asked for) or, if `inner`, which works by it;
    the line that called it, and how often."""

    def __init__(self, wire, operator=None, site=None, count=None, inner=False):
        self.input = wire["input"]
        self.source = _placements(wire["from"])
        self.target = _placements(wire["to"])
        self.bytes = wire["bytes"]
        self.collectives = list(wire["collectives"])
        self.operator = operator
        self.site = site
        self.count = count
        self.inner = inner

    def __repr__(self):
        where = "" if self.operator is None else f"{self.count} x {self.operator} at {self.site}: "
        return f"{where}input {self.input} {self.source} -> {self.target}, {self.bytes:.0f} bytes"


class Candidate:
    """A way to place a call: placements of each input and output, what must be moved for it, the estimated time."""

    def __init__(self, wire):
        self.inputs = [_placements(each["placements"]) for each in wire["inputs"]]
        self.outputs = [_placements(each["placements"]) for each in wire["outputs"]]
        self.redistributions = [Redistribution(each) for each in wire["redistributions"]]
        self.seconds = wire["seconds"]

    def __repr__(self):
        return f"{self.inputs} -> {self.outputs}, {self.seconds * 1e6:.1f} us {self.redistributions or ''}"


class Explanation:
    """How a call would be placed.

    rows: what the operator's rule takes and gives along one mesh dimension, as (inputs, outputs), for tensors of these
    shapes wherever they lie. candidates: cheapest first. choice: the one that needs no redistribution, which the call
    takes; None when it is refused, because of `refusal`; implicit redistribution takes the first candidate then.
    """

    def __init__(self, wire):
        self.rows = [(_placements(row["inputs"]), _placements(row["outputs"])) for row in wire["rows"]]
        self.candidates = [Candidate(each) for each in wire["candidates"]]
        self.choice = None if wire["choice"] < 0 else self.candidates[wire["choice"]]
        self.refusal = wire["refusal"] or None

    def __repr__(self):
        lines = [f"{'->' if each is self.choice else '  '} {each}" for each in self.candidates]
        return "\n".join(lines + ([f"refused: {self.refusal}"] if self.refusal else []))
