"""Whole modules between this process and the workers, with progress bars."""
import collections
import contextlib

import torch

from .tensor import get_async

_AHEAD = 8  # values that are asked for before the first of them is waited for


class Bar:
    """A tqdm bar over the bytes of some tensors; none where it is not wanted."""

    def __init__(self, title, tensors, wanted):
        self._bar = None
        if wanted:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=sum(map(bytes_of, tensors)), desc=title, unit="B", unit_scale=True, unit_divisor=1024)

    def update(self, tensor):
        if self._bar is not None:
            self._bar.update(bytes_of(tensor))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.close()


def bytes_of(tensor):
    """Of the whole value."""
    return tensor.numel() * tensor.element_size()


def state_dict(module, progress=False):
    """What module.state_dict() is in one process: whole values, on the CPU. `progress`: show a bar."""
    state = module.state_dict()
    there = {name: value for name, value in state.items() if isinstance(value, torch.Tensor) and
             value.device.type == "dtorch"}
    waiting = iter(there)
    futures = collections.deque()
    with Bar("download", there.values(), progress) as bar:
        for _ in range(len(there)):
            while len(futures) < _AHEAD and (name := next(waiting, None)) is not None:
                futures.append((name, get_async(there[name].detach())))
            name, future = futures.popleft()
            state[name] = future.wait()
            bar.update(state[name])
    return state


def load_state_dict(module, state, strict=True, progress=False):
    """module.load_state_dict(): parameters and buffers stay where they lie and take these whole values. `progress`: show a
    bar. RuntimeError: names are missing or unexpected, and `strict`, or shapes differ."""
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    with Bar("upload", tensors, progress) as bar, contextlib.ExitStack() as hooks:
        def tell(part, values, prefix, *_):
            for name in [*part._parameters, *part._buffers]:
                if isinstance(values.get(prefix + name), torch.Tensor):
                    bar.update(values[prefix + name])

        for part in module.modules():
            hooks.callback(part.register_load_state_dict_pre_hook(tell).remove)
        return module.load_state_dict(state, strict)
