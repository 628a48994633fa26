"""PyTorch on the workers of a dtorchd.

    import torch, dtorch

    with dtorch.start(workers=2):
        x = dtorch.distribute_tensor(torch.randn(6, 4), placements=[dtorch.Shard(0)])
        print((x @ x.T).sum())

dtorch.client is the library beneath it, which needs no PyTorch.
"""
import importlib

# What is found here, by the module that it is in; loaded when it is first asked for.
_NAMES = {
    "_placement": ["Partial", "Replicate", "Shard"],
    "_types": ["DType", "Device"],
    "_library": ["Cancelled", "DeadlineExceeded", "Error", "OperatorFailed", "OverQuota", "TensorLost", "Unavailable",
                 "WorkerLost"],
    "_checker": ["Comparison", "TensorChecker"],
    "device": ["Session", "connect", "disconnect", "session", "start"],
    "mesh": ["DeviceMesh", "default_mesh", "init_device_mesh"],
    "tensor": ["Communications", "TensorFuture", "communications", "distribute_tensor", "explain",
               "explicit_redistribution", "from_local", "get_async"],
    "transfer": ["load_state_dict", "state_dict"],
    "parallel": ["ColwiseParallel", "ParallelStyle", "PrepareModuleInput", "PrepareModuleOutput", "RowwiseParallel",
                 "SequenceParallel", "distribute_module", "fully_shard", "parallelize_module"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
_SUBMODULES = ["client", "collectives", "device", "mesh", "parallel", "tensor", "transfer"]
__all__ = sorted([*_MODULES, *_SUBMODULES])


def __getattr__(name):
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return __all__
