"""PyTorch's operator samples, taken apart into single ATen calls.

A *program* is a Python function that computes something: an op_db sample, its backward, one written here. A Recorder around
it keeps every ATen call made, composite operators (aten::matmul) as well as what they are made of. From each Call follow
its twins (in-place form, `.out` overload, overloads for numbers) and variants (other dtypes and sizes). What a call shall
give is computed by PyTorch in this process, from copies of the arguments.
"""
import collections
import contextlib
import functools
import itertools
import re
import warnings

import more_programs
import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_flatten
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = {getattr(torch, name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
                                            "float32", "float64", "complex64", "complex128")}
SEED = 20
LARGEST = 1 << 22  # elements of a tensor
UNINITIALISED = re.compile(r"aten::(_?new_|_)?empty(_|\.|$)")
# What PyTorch itself computes differently from call to call, in the last bits.
NOT_TO_THE_BIT = {"aten::linalg_lstsq": "LAPACK's gelsy takes the pivots that it is given; PyTorch gives uninitialised ones"}
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
PRE_DISPATCH = torch._C.DispatchKey.PreDispatch


warnings.filterwarnings("ignore", module="torch.testing")
# For each dtype of an operator it reads the sources of the whole stack, to find a unit test of PyTorch's; there is none.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None


def is_tensor(leaf):
    return isinstance(leaf, torch.Tensor)


def leaves(tree):
    """Of nested lists, tuples and dictionaries, in order."""
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in leaves(item)]
    if isinstance(tree, dict):
        return leaves(list(tree.values()))
    return [tree]


def mapped(function, tree):
    """`tree` with function(tensor) in place of each tensor."""
    if is_tensor(tree):
        return function(tree)
    if isinstance(tree, dict):
        return {name: mapped(function, item) for name, item in tree.items()}
    if isinstance(tree, (list, tuple)) and not isinstance(tree, torch.Size):
        return [mapped(function, item) for item in tree]
    return tree


def plain(tensor):
    """Whether it can be sent: dense memory of this process."""
    return (tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.dtype in DTYPES
            and not tensor.is_quantized and not tensor.is_nested and not tensor.is_conj() and not tensor.is_neg()
            and not torch._is_zerotensor(tensor) and tensor.numel() < LARGEST)


def copied(tree):
    return mapped(lambda tensor: tensor.detach().clone(), tree)


class Outcome:
    """What a call gives: `results`, flat; `strides` of those that are tensors; `after`: the tensor arguments then."""

    def __init__(self, results, after):
        self.strides = [leaf.stride() if is_tensor(leaf) else None for leaf in results]
        self.results = [leaf.detach().clone() if is_tensor(leaf) else leaf for leaf in results]
        self.after = after

    @property
    def values(self):
        return self.results + self.after


class Call:
    """One ATen operator with arguments of its own, that nobody changes."""

    def __init__(self, overload, args, kwargs):
        self.overload = overload
        if self.is_random:  # numbers are drawn in the order of memory, and tensors are sent contiguous
            args, kwargs = mapped(torch.Tensor.contiguous, (args, kwargs))
        self.args = list(args)
        self.kwargs = {argument.name: kwargs[argument.name] for argument in overload._schema.arguments
                       if argument.name in kwargs}  # in the schema's order

    @property
    def name(self):
        return self.overload.name()

    @functools.cached_property
    def tensors(self):
        return list(filter(is_tensor, leaves((self.args, self.kwargs))))

    @functools.cached_property
    def key(self):
        return key_of(self.overload, self.args, self.kwargs)

    @property
    def is_random(self):
        return torch.Tag.nondeterministic_seeded in self.overload.tags

    @property
    def is_exact(self):
        """Whether equal calls give equal bits."""
        return self.name.split(".")[0] not in NOT_TO_THE_BIT

    def leaves_undefined(self, value):
        """Whether PyTorch leaves memory of a value of the outcome as it was; _ctc_loss: behind the ends of the targets."""
        return UNINITIALISED.match(self.name) is not None or "::_ctc_loss" in self.name and value.dim() == 3

    @functools.cached_property
    def written(self):
        return self.positions(writes)

    def positions(self, wanted):
        """In `tensors`, of those given for schema arguments that are `wanted`."""
        found, at = [], 0
        for argument, value in self.bound.items():
            count = sum(map(is_tensor, leaves(value)))
            found += range(at, at + count) if wanted(argument) else ()
            at += count
        return found

    @functools.cached_property
    def bound(self):
        """What was given, by schema argument, in the order of `tensors`."""
        arguments = self.overload._schema.arguments
        by_name = {argument.name: argument for argument in arguments}
        bound = dict(zip(arguments, self.args))
        bound.update((by_name[name], value) for name, value in self.kwargs.items())
        return bound

    @functools.cached_property
    def outcome(self):
        """Raises what PyTorch raises."""
        args, kwargs = copied((self.args, self.kwargs))
        tensors = list(filter(is_tensor, leaves((args, kwargs))))
        if self.is_random:
            torch.default_generator.manual_seed(SEED)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = self.overload(*args, **kwargs)
        results = leaves(result) if self.overload._schema.returns else []
        if not all(plain(leaf) for leaf in results if is_tensor(leaf)):
            raise TypeError("a result that cannot be sent")
        if any(self.tensors[i].shape != tensors[i].shape for i in self.positions(lambda argument: argument.is_out)):
            raise TypeError("an out argument of another shape")
        return Outcome(results, tensors)

    @functools.cached_property
    def errors(self):
        """How far PyTorch's own kernel is off, at most, in each result and each argument afterwards: against the call in
        double precision; of a call in double precision, as many units in the last place as in single. 0 where that fails."""
        mine = self.outcome.values
        finest = any(value.dtype in (torch.float64, torch.complex128) for value in mine if is_tensor(value))
        other = in_precision(self, SINGLE if finest else DOUBLE)
        if not works(other):
            return [0.0] * len(mine)
        scale = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps if finest else 1
        return [scale * distance(*both) for both in zip(mine, other.outcome.values)]

    def __str__(self):
        show = lambda tensor: f"{str(tensor.dtype)[6:]}{list(tensor.shape)}"
        args, kwargs = mapped(show, (self.args, self.kwargs))
        text = ", ".join([str(arg) for arg in args] + [f"{name}={value}" for name, value in kwargs.items()])
        return f"{self.name}({text.replace(chr(39), '')[:300]})"


def writes(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


DOUBLE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
          torch.complex64: torch.complex128}
SINGLE = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def in_precision(call, precision):
    """The call with `precision`'s dtypes in place of its own."""
    args, kwargs = mapped(lambda tensor: tensor.to(precision.get(tensor.dtype, tensor.dtype)), (call.args, call.kwargs))
    change = lambda leaf: precision.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf
    return Call(call.overload, list(map(change, args)), {name: change(value) for name, value in kwargs.items()})


def distance(a, b):
    """The greatest one between elements of two tensors that are both finite."""
    if not is_tensor(a) or not (a.is_floating_point() or a.is_complex()) or a.shape != b.shape:
        return 0.0
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    apart = (a.to(wide) - b.to(wide)).abs()
    finite = apart[apart.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def key_of(overload, args, kwargs):
    """Equal for calls that differ in values of tensors only."""
    def describe(tree):
        if is_tensor(tree):
            return tree.dtype, tree.shape, tree.stride()
        return tuple(map(describe, tree)) if isinstance(tree, (list, tuple)) else (type(tree), str(tree))
    return overload, describe(args), tuple((name, describe(value)) for name, value in kwargs.items())


class Recorder(SchemaCheckMode):
    """Keeps in `calls` the ATen calls whose key is not yet in `seen`, before autograd and composition take them apart.

    A SchemaCheckMode only because PyTorch lets no other mode of a test's see calls that early."""

    def __init__(self, seen):
        TorchDispatchMode.__init__(self, _dispatch_key=PRE_DISPATCH)
        self.seen = seen
        self.calls = []

    def __torch_dispatch__(self, overload, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.keep(overload, args, kwargs) or not takes_apart(overload):
            with torch._C._DisablePythonDispatcher():  # which has decompositions of its own
                return overload(*args, **kwargs)
        torch._ops._set_mode_pre_dispatch(self)
        try:
            return overload._op_dk(COMPOSITE, *args, **kwargs)
        finally:
            torch._ops._pop_mode_from_pre_dispatch()

    def keep(self, overload, args, kwargs):
        if overload.namespace not in ("aten", "dtorch"):
            return False
        tensors = list(filter(is_tensor, leaves((args, kwargs))))
        memories = [tensor.untyped_storage().data_ptr() for tensor in tensors if plain(tensor) and tensor.numel()]
        if not all(map(plain, tensors)) or len(set(memories)) < len(memories):
            return False
        key = key_of(overload, args, kwargs)
        if key in self.seen:
            return False
        self.seen.add(key)
        with torch.no_grad():
            self.calls.append(Call(overload, *copied((args, kwargs))))
        return True

    def __enter__(self):
        self.dispatcher = torch._C._EnablePythonDispatcher()
        self.dispatcher.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.dispatcher.__exit__(*error)


@functools.lru_cache(None)
def takes_apart(overload):
    """Whether PyTorch's CPU kernel is other ATen calls."""
    has = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, overload.name())
    return has(COMPOSITE) and not has(torch._C.DispatchKey.CPU) and not has(torch._C.DispatchKey.AutogradCPU)


def record(program, seen):
    """The new calls of `program`, also when it raises in their midst."""
    recorder = Recorder(seen)
    torch.default_generator.manual_seed(SEED)
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with recorder:
            program()
    return recorder.calls


class Seen:
    """What calls there were: `keys`, and of twins how many with tensors of the same ranks and dtypes."""

    MOST = 3

    def __init__(self):
        self.keys = set()
        self.twins = collections.Counter()

    def is_new(self, twin):
        like = twin.overload, tuple((tensor.dtype, tensor.dim()) for tensor in twin.tensors)
        new = twin.key not in self.keys and self.twins[like] < self.MOST
        self.keys.add(twin.key)
        self.twins[like] += new
        return new


def calls(program, seen):
    """The new calls of `program`, and new twins of theirs, as far as PyTorch can run them."""
    for call in record(program, seen.keys):
        if works(call):
            yield call
        yield from (twin for twin in twins(call) if seen.is_new(twin) and works(twin))


# Twins


def overloads(name):
    """Of an operator without namespace."""
    packet = getattr(torch.ops.aten, name, None)
    found = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    return [overload for overload in found if torch._C._dispatch_has_kernel(overload.name())]  # not TorchScript's own


def kinds(arguments):
    return [(argument.name, str(argument.type)) for argument in arguments]


OPTIONS = {"dtype", "layout", "device", "pin_memory"}  # that an out argument stands for


@functools.lru_cache(None)
def forms(overload):
    """Other overloads of the operator: those that take the same arguments (in-place, functional, copying); with out
    arguments besides; with other types of arguments."""
    schema = overload._schema
    base, wanted = schema.name.split("::")[1], kinds(schema.arguments)
    if any(argument.is_out for argument in schema.arguments):
        return [], [], []
    inplace = any(map(writes, schema.arguments))
    names = [base[:-1]] if inplace and base.endswith("_") else [] if inplace else [base + "_", base + "_copy"]
    same = [other for name in names for other in overloads(name) if kinds(other._schema.arguments) == wanted]
    out, similar = [], []
    for other in overloads(base) if not inplace else ():
        arguments = other._schema.arguments
        outs = [argument for argument in arguments if argument.is_out]
        if outs and kinds(arguments[:-len(outs)]) in (wanted, [kind for kind in wanted if kind[0] not in OPTIONS]):
            out.append(other)
        elif not outs and other is not overload and {name for name, _ in kinds(arguments)} >= {n for n, _ in wanted}:
            similar.append(other)
    return same, out, similar


def twins(call):
    """Calls of the operator's other forms, and of their forms, whether PyTorch can run them or not."""
    there, level = {call.overload}, [call]
    for _ in range(2):
        level = [twin for each in level for twin in direct_twins(each, there)]
        yield from level


def direct_twins(call, there):
    same, out, similar = ([other for other in form if other not in there] for form in forms(call.overload))
    there.update(same, out, similar)
    yield from (Call(other, call.args, call.kwargs) for other in same)
    yield from (with_out(other, call) for other in (out if works(call) else ()))
    yield from filter(None, (with_types(other, call) for other in similar))


def works(call):
    try:
        call.outcome
    except Exception:
        return False
    return True


def with_out(other, call):
    outs = [argument for argument in other._schema.arguments if argument.is_out]
    results = [torch.full_like(leaf, 1, memory_format=torch.contiguous_format) if is_tensor(leaf) else leaf
               for leaf in call.outcome.results]
    if len(outs) == 1 and "List" in str(outs[0].type):
        given = {outs[0].name: results}
    else:
        given = {argument.name: result for argument, result in zip(outs, results)}
    return Call(other, call.args, {**call.kwargs, **given})  # keeps what `other` has


def with_types(other, call):
    """The arguments as another overload takes them: numbers for tensors of one element, and the reverse; or None."""
    given = {argument.name: value for argument, value in call.bound.items()}
    args, kwargs, changed = [], {}, False
    for argument in other._schema.arguments:
        if argument.name not in given:
            if not argument.has_default_value():
                return None
            continue
        value, kind = given[argument.name], str(argument.type).removeprefix("Optional[").removesuffix("]")
        if kind in ("number", "float", "int") and is_tensor(value) and value.numel():
            value, changed = value.flatten()[0].item(), True
        elif kind == "Tensor" and isinstance(value, (bool, int, float, complex)):
            value, changed = torch.tensor(value), True
        if argument.kwarg_only or len(args) < len(kwargs):
            kwargs[argument.name] = value
        else:
            args.append(value)
    if len(args) + len(kwargs) != len(given):
        return None
    if not changed and call.overload._schema.arguments == other._schema.arguments:
        return None
    return Call(other, args, kwargs)


# Variants

SAME_KIND = [
    [torch.float32, torch.float64, torch.bfloat16, torch.float16],
    [torch.complex64, torch.complex128],
    [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8],
]
EXTENTS = [{}, {5: 4, 10: 7, 3: 6, 2: 3}, {5: 2, 10: 4, 3: 4, 2: 7, 4: 5}, {5: 8, 10: 3, 3: 1, 20: 5, 4: 6},
           {5: 3, 10: 6, 3: 2, 2: 4, 20: 9}, {5: 7, 10: 2, 3: 5, 2: 5, 4: 3}]


# They trust pivots, indices or shapes that go with each other: with others PyTorch itself breaks.
TRUSTING = re.compile(r"aten::((linalg_|_)?(lu|ldl)_|\w*max_pool\dd\w*_backward|max_unpool|slow_conv)")


def variants(call):
    """The call with other sizes and other dtypes of the same kind, as far as PyTorch can run it."""
    if TRUSTING.match(call.name):
        return
    for extents in EXTENTS:
        resized = resize(call, extents) if extents else call
        if extents and resized.key != call.key and works(resized):
            yield resized
        for kind in SAME_KIND:
            present = {tensor.dtype for tensor in call.tensors} & set(kind)
            # Index tensors keep their dtype where there are others.
            if len(present) != 1 or (kind is SAME_KIND[2] and any(t.is_floating_point() for t in call.tensors)):
                continue
            for dtype in kind:
                if dtype not in present:
                    changed = retype(resized, present, dtype)
                    if works(changed):
                        yield changed


def retype(call, present, dtype):
    change = lambda tensor: tensor.to(dtype) if tensor.dtype in present else tensor
    return Call(call.overload, *mapped(change, (call.args, call.kwargs)))


def resize(call, extents):
    """Values are repeated, or left out, element by element: they stay in the operator's domain."""
    def change(tensor):
        if tensor.dim() == 0 or tensor.numel() == 0:
            return tensor
        shape = [extents.get(extent, extent) for extent in tensor.shape]
        count = torch.Size(shape).numel()
        return tensor.contiguous().flatten()[torch.arange(count) % tensor.numel()].reshape(shape)
    return Call(call.overload, *mapped(change, (call.args, call.kwargs)))


# Programs


class Source:
    """Programs of one operator. `runs(rng)` yields them."""

    def __init__(self, name, runs):
        self.name = name
        self.runs = runs


def samples_of(op, dtype, count, **options):
    try:
        yield from itertools.islice(op.sample_inputs("cpu", dtype, **options), count or None)
    except Exception as error:  # a sample that cannot be made here says nothing of us
        text = (str(error).splitlines() or [type(error).__name__])[0]
        print(f"  {op.name} {dtype}: no samples: {text[:100]}", flush=True)


def programs_of(op, count, functions, backward):
    for dtype in sorted(op.supported_dtypes("cpu") & DTYPES, key=str):
        for sample in samples_of(op, dtype, count, requires_grad=False):
            for function in functions:
                yield lambda: function(sample.input, *sample.args, **sample.kwargs)
    if backward and op.supports_autograd:
        for dtype in sorted(op.supported_backward_dtypes("cpu") & DTYPES, key=str):
            for sample in samples_of(op, dtype, count, requires_grad=True):
                yield lambda: differentiate(op.op, sample)


def differentiate(function, sample):
    inputs = [leaf for leaf in tree_flatten((sample.input, sample.args, sample.kwargs))[0]
              if is_tensor(leaf) and leaf.requires_grad]
    results = [leaf for leaf in tree_flatten(function(sample.input, *sample.args, **sample.kwargs))[0]
               if is_tensor(leaf) and leaf.requires_grad]
    torch.autograd.grad(results, inputs, [torch.rand_like(result) for result in results], allow_unused=True)


def sources(count=0, backward=True):
    """All programs that there are; `count`: the first so many samples of an operator and dtype, 0: all."""
    for op in database.op_db:
        functions = [op.op] + [alias.op for alias in op.aliases]
        yield Source(op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""),
                     functools.partial(programs_of, op, count, functions, backward))
    by_hand = itertools.groupby(more_programs.programs(), lambda item: item[0])
    for name, group in [(name, [function for _, function in group]) for name, group in by_hand]:
        yield Source(name, functools.partial(must_work, name, group))
    for foreach in (database.foreach_unary_op_db, database.foreach_binary_op_db, database.foreach_pointwise_op_db,
                    database.foreach_reduce_op_db, database.foreach_other_op_db):
        for op in foreach:
            functions = [function for function in (op.method_variant, op.inplace_variant) if function is not None]
            yield Source(op.name, functools.partial(programs_of, op, min(count or 6, 6), functions, False))


def must_work(name, functions):
    for function in functions:
        def program(function=function):
            try:
                function()
            except Exception as error:
                print(f"  {name}{function.args}: {error}", flush=True)
                raise
        yield program


# Comparison


def compare(what, got, want, slack):
    """Raises AssertionError where `got` is not `want` by torch.testing's tolerances and what `slack()` gives (a number or
    a tensor) besides; that is asked for only where it matters."""
    if not is_tensor(want):
        want = torch.tensor(want)
        got = got.to(want.dtype) if got.dtype in (torch.float64, torch.complex128) else got
    assert got.shape == want.shape, f"{what}: shape {list(got.shape)}, wanted {list(want.shape)}"
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, wanted {want.dtype}"
    try:
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False)
    except AssertionError as error:
        if within(got, want, slack()):
            return
        lines = [line for line in str(error).splitlines() if line][:3]
        raise AssertionError(f"{what}: {' '.join(lines)}; got {short(got)}, wanted {short(want)}") from None


def within(got, want, slack):
    if not is_tensor(slack) or not (want.is_floating_point() or want.is_complex()):
        return False
    rtol, atol = torch.testing._comparison.default_tolerances(want.dtype)
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    near = (got - want).abs() <= atol + rtol * want.abs() + slack
    same = (got == want) | (got.isnan() & want.isnan())
    return bool((near | same).all())


def short(tensor):
    return re.sub(r"\s+", " ", str(tensor.flatten()[:6].tolist()))
