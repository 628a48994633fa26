"""Programs for operators that PyTorch's samples do not reach: each a name and a function that makes the calls."""
import functools
import itertools

import torch

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
SHAPES = [(5, 4), (6,), (3, 2, 7), (4, 0), (2, 1, 3, 4)]


def draw(shape, dtype=torch.float32, low=-2, high=2):
    if dtype.is_floating_point or dtype.is_complex:
        return (torch.rand(shape, dtype=torch.float64) * (high - low) + low).to(dtype)
    return torch.randint(low, high, shape).to(dtype) if dtype != torch.bool else torch.randint(0, 2, shape).bool()


def over(dtypes, shapes=None):
    """Runs the function for each dtype and shape."""
    def decorate(function):
        return [functools.partial(function, *choice) for choice in itertools.product(shapes or SHAPES, dtypes)]
    return decorate


ADAM = dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.02, eps=1e-6, maximize=False)
PARAMETERS = [(5, 4), (6,), (3, 2, 7), (2, 1, 3, 4), (9, 2)]


@over([torch.float32, torch.float64], PARAMETERS)
def fused_adam(shape, dtype):
    for name in "_fused_adam_", "_fused_adamw_":
        for amsgrad in False, True:
            shapes = [shape, (3, 5), (7,)]
            make = lambda low=-2, high=2: [draw(each, dtype, low, high) for each in shapes]
            steps = [torch.tensor(3.0) for _ in shapes]
            greatest = make(0, 1) if amsgrad else []
            lists = make(), make(), make(), make(0, 1), greatest, steps
            getattr(aten, name).default(*lists, amsgrad=amsgrad, **ADAM)
            lists = make(), make(), make(), make(0, 1), make(0, 1) if amsgrad else [], [torch.tensor(3.0) for _ in shapes]
            getattr(aten, name).tensor_lr(*lists, amsgrad=amsgrad, **{**ADAM, "lr": torch.tensor(0.1)})


@over([torch.float32, torch.float64], PARAMETERS)
def fused_sgd(shape, dtype):
    options = dict(weight_decay=0.02, momentum=0.9, dampening=0.1, nesterov=False, maximize=False, is_first_step=False)
    shapes = [shape, (3, 5), (7,)]
    make = lambda: [draw(each, dtype) for each in shapes]
    aten._fused_sgd_.default(make(), make(), make(), lr=0.1, **options)
    aten._fused_sgd_.default(make(), make(), [], lr=0.1, **{**options, "momentum": 0.0, "dampening": 0.0})
    aten._fused_sgd_.tensor_lr(make(), make(), make(), lr=torch.tensor(0.1), **options)


@over([torch.float32, torch.float64], PARAMETERS)
def fused_adagrad(shape, dtype):
    options = dict(lr_decay=0.01, weight_decay=0.02, eps=1e-6, maximize=False)
    shapes = [shape, (3, 5), (7,)]
    make = lambda low=-2: [draw(each, dtype, low) for each in shapes]
    steps = [torch.tensor(3.0) for _ in shapes]
    aten._fused_adagrad_.default(make(), make(), make(0), steps, lr=0.1, **options)
    steps = [torch.tensor(3.0) for _ in shapes]
    aten._fused_adagrad_.tensor_lr(make(), make(), make(0), steps, lr=torch.tensor(0.1), **options)


@over([torch.float32, torch.float64, torch.bfloat16, torch.int64], PARAMETERS)
def foreach_with_tensors(shape, dtype):
    make = lambda low=1: [draw(each, dtype, low, 5) for each in (shape, (3, 5), (7,))]
    number = torch.tensor(3, dtype=dtype)
    for name in "_foreach_add", "_foreach_mul", "_foreach_div":
        getattr(aten, name).Tensor(make(), number)
    aten._foreach_add.Tensor(make(), number, alpha=2)
    for name in ["_foreach_addcmul"] + ["_foreach_addcdiv"] * dtype.is_floating_point:
        getattr(aten, name).ScalarList(make(), make(), make(), [1, 2, 3])
        getattr(aten, name).Tensor(make(), make(), make(), torch.tensor([1.0, 2, 3]).to(dtype))
    for name in "_foreach_add", "_foreach_sub", "_foreach_mul", "_foreach_div", "_foreach_pow", "_foreach_lerp", \
            "_foreach_clamp_min", "_foreach_clamp_max", "_foreach_minimum", "_foreach_maximum":
        lists = (make(), make()) if name == "_foreach_lerp" else (make(),)
        if hasattr(getattr(aten, name), "ScalarList") and not (dtype == torch.int64 and name == "_foreach_lerp"):
            getattr(aten, name).ScalarList(*lists, [2, 1, 3])
    aten._foreach_pow.ScalarAndTensor(2, make())
    if dtype.is_floating_point:
        for order in 2, 1:
            aten._foreach_norm.Scalar([draw(each, dtype) for each in ((6, 4), (5, 8), (9, 6))], order)
    aten._foreach_max.default([draw(each, dtype) for each in ((6, 4), (5, 8), (9, 6))])
    aten._foreach_copy_.default(make(), make())
    aten._foreach_copy.default(make(), make())
    aten._foreach_zero_.default(make())


@over(WHOLE + [torch.bool])
def bitwise(shape, dtype):
    a, b = draw(shape, dtype, 0, 5), draw(shape, dtype, 0, 5)
    names = ["__and__", "__or__", "__xor__", "__iand__", "__ior__", "__ixor__"]
    names += ["__lshift__", "__rshift__", "__ilshift__", "__irshift__"] if dtype != torch.bool else []
    for name in names:
        getattr(aten, name).Tensor(a.clone(), b)
        getattr(aten, name).Scalar(a.clone(), dtype != torch.bool and 2)


@over(FLOATS)
def activations(shape, dtype):
    x, grad = draw(shape, dtype), draw(shape, dtype)
    aten._add_relu.Tensor(x.float(), grad.float())
    aten.copy.default(x, grad)
    aten.zero_.default(x.clone())
    aten.dropout_.default(x.clone(), 0.3, True)
    aten.alpha_dropout_.default(x.clone(), 0.3, True)
    aten.rrelu_with_noise.default(x, torch.ones_like(x), 0.1, 0.3, False)
    aten.native_dropout.default(x, 0.3, True)
    aten.silu_backward.default(grad, x)
    aten.mish_backward.default(grad, x)
    aten.sigmoid_backward.default(grad, x)
    aten.tanh_backward.default(grad, x)
    aten.logit_backward.default(grad, x.sigmoid(), None)
    aten.gelu_backward.default(grad, x)
    aten.leaky_relu_backward.default(grad, x, 0.1, False)
    aten.hardtanh_backward.default(grad, x, -1, 1)
    aten.hardsigmoid_backward.default(grad, x)
    aten.hardswish_backward.default(grad, x)
    aten.threshold_backward.default(grad, x, 0.5)


@over([torch.float32, torch.float64, torch.int64, torch.bool])
def predicates(shape, dtype):
    x, y = draw(shape, dtype, 0, 2), draw(shape, dtype, 0, 2)
    aten._is_all_true.default(x.bool())
    aten._is_any_true.default(x.bool())
    aten.is_same_size.default(x, y)
    aten.equal.default(x, y)
    aten.equal.default(x, x.clone())
    aten.isin.Tensor_Scalar(x, 1) if dtype != torch.bool else None
    aten.isin.Scalar_Tensor(1, x) if dtype != torch.bool else None


@over([torch.float32, torch.int64, torch.bool], [()])
def merged_and_split(_, dtype):
    """Views that merge and split dimensions, where 2 and 3 ranks' parts end between blocks and where they do not."""
    for outer, inner in (6, 4), (12, 5), (4, 3), (3, 8), (5, 4):
        x = draw((outer, inner), dtype)
        y = draw((2, outer, inner), dtype)
        for name in "view", "reshape", "_unsafe_view":
            getattr(aten, name).default(x, [outer * inner])
            getattr(aten, name).default(y, [2, outer * inner])
            getattr(aten, name).default(y, [2 * outer, inner])
            getattr(aten, name).default(x.flatten(), [outer, inner])
            getattr(aten, name).default(y.flatten(), [2 * outer, inner])
            getattr(aten, name).default(y.flatten(1), [2, outer, inner])
        aten.flatten.using_ints(y, 0, 1)
        aten.flatten.using_ints(y, 1, 2)
        aten.unflatten.int(x.flatten(), 0, [outer, inner])
        aten.unflatten.int(y.flatten(1), 1, [outer, inner])
        aten.ravel.default(x)


@over([torch.float32, torch.float64, torch.int64])
def along_a_dimension(shape, dtype):
    x = draw(shape, dtype, -5, 5)
    if x.numel():
        aten._aminmax.default(x)
        aten._aminmax.dim(x, -1)
    aten.unsafe_split_with_sizes.default(x, [1, shape[0] - 1], 0)
    aten.split_with_sizes.default(x, [1, shape[0] - 1], 0)
    aten.split.sizes(x, [1, shape[0] - 1], 0)
    if dtype.is_floating_point:
        aten._logcumsumexp.default(x, 0)
        aten.norm.Scalar(x)
        aten.norm.ScalarOpt_dtype(x, 2, dtype=torch.float64)
        aten.norm.ScalarOpt_dim_dtype(x, 2, [0], True, dtype=torch.float64)
        aten.frobenius_norm.dim(x, [0], False)
        aten.embedding_renorm_.default(x.clone(), torch.tensor([0, 1, 0]), 0.5, 2.0) if len(shape) == 2 and x.numel() else None


@over(FLOATS[:2], [(5, 4), (6, 6), (4, 7), (3, 2), (8, 5)])
def of_matrices(shape, dtype):
    m, n = shape
    x, y, bias = draw((m, n), dtype), draw((n, 6), dtype), draw((6,), dtype)
    aten._addmm_activation.default(bias, x, y)
    aten.chain_matmul.default([x, y])
    aten.nuclear_norm.default(x)
    aten.nuclear_norm.dim(x, [0, 1])
    aten.linalg_matrix_norm.default(x, 2)
    aten.linalg_matrix_norm.str_ord(x)
    aten.linalg_norm.ord_str(x, "fro")
    aten._weight_norm_interface.default(x, draw((m, 1), dtype, 1), 0)
    aten._weight_norm.default(x, draw((m, 1), dtype, 1), 0)
    aten.norm_except_dim.default(x)
    aten._euclidean_dist.default(x, draw((3, n), dtype))
    aten.fill_diagonal_.default(x.clone(), 3)
    aten.vander.default(x[0])
    aten._stack.default([x, x + 1])
    aten.searchsorted.Scalar(x[0].sort()[0], 0.3)
    aten.view.dtype(x, torch.int32 if dtype == torch.float32 else torch.int64)


@over(FLOATS[:2] + [torch.complex64], [(4, 5, 5), (2, 6, 6), (3, 4, 4), (7, 3, 3), (1, 6, 6)])
def of_square_matrices(shape, dtype):
    x = draw(shape, dtype) + 5 * torch.eye(shape[-1]).to(dtype)
    b = draw((shape[0], shape[1], 2), dtype)
    factor = torch.linalg.cholesky(x @ x.mH)
    aten._cholesky_solve_helper.default(b, factor, False)
    aten._lu_with_info.default(x, True, False)
    aten.slogdet.default(x)
    aten.linalg_cond.default(x)
    aten.linalg_cond.p_str(x, "fro")
    aten.linalg_matrix_rank.default(x, 0.1)
    aten.linalg_matrix_rank.tol_tensor(x, torch.tensor(0.1, dtype=x.real.dtype))
    aten.linalg_pinv.rcond_tensor(x, torch.tensor(0.1, dtype=x.real.dtype))
    aten.svd.default(x)
    reflectors, tau = torch.geqrf(x)
    aten.ormqr.default(reflectors, tau, b)


@over([torch.int8], [(5, 4), (17, 8), (6, 6), (3, 7), (9, 2)])
def of_small_integers(shape, dtype):
    aten._int_mm.default(draw(shape, dtype, -5, 5), draw((shape[1], 6), dtype, -5, 5))


@over(FLOATS[:2], [(5, 4), (6, 3), (3, 2, 7), (2, 6), (2, 1, 3, 4)])
def quantized_and_dropped(shape, dtype):
    x, grad = draw(shape, dtype), draw(shape, dtype)
    aten.native_dropout_backward.default(grad, x > 0, 1.5)
    aten.infinitely_differentiable_gelu_backward.default(grad, x)
    aten.feature_dropout_.default(x.clone(), 0.3, True)
    aten.lift.default(x)
    aten.polygamma_.default(x.abs() + 1, 1)
    if dtype == torch.float32:
        aten.fake_quantize_per_tensor_affine.default(x, 0.1, 3, 0, 15)
        aten.fake_quantize_per_tensor_affine.tensor_qparams(x, torch.tensor(0.1), torch.tensor(3, dtype=torch.int32), 0, 15)
        aten.fake_quantize_per_tensor_affine_cachemask.default(x, 0.1, 3, 0, 15)
        aten.fake_quantize_per_tensor_affine_cachemask_backward.default(grad, x > 0)


@over(FLOATS[:2] + [torch.int64], [(5, 4), (6, 3), (3, 2, 7), (2, 6), (7, 3, 4)])
def put_and_taken(shape, dtype):
    x, rows = draw(shape, dtype), torch.tensor([1, 0, 1, 1])
    values = draw((4, *shape[1:]), dtype)
    for accumulate in False, True:
        aten._index_put_impl_.default(x.clone(), [rows], values, accumulate)
        aten._index_put_impl.default(x, [rows], values, accumulate)
        aten._unsafe_index_put.default(x, [rows], values, accumulate)
    aten._unsafe_index.Tensor(x, [rows])
    aten._unsafe_index.Tensor(x, [None, rows])
    aten._stack.default([x, x + 1], 1)
    aten.mode.default(x, 0)
    for rank in "1d", "2d", "3d":
        getattr(aten, f"atleast_{rank}").Sequence([x, x + 1])
    aten.moveaxis.intlist(x, [0, 1], [1, 0])
    aten.moveaxis.int(x, 0, 1)
    if dtype != torch.int64:
        index = torch.zeros(shape, dtype=torch.int64)
        aten.scatter.value_reduce(x, 0, index, 2.0, reduce="add")
        aten.scatter.value_reduce(x, 0, index, 2.0, reduce="multiply")
        aten.scatter_.value_reduce(x.clone(), 0, index, 2.0, reduce="add")
    aten.one_hot.default(torch.randint(0, 7, shape), 7)
    aten.to.other(x, x.to(torch.float32))
    aten.index.Tensor(x, [rows])
    aten.index.Tensor(x, [rows, torch.tensor([0, 1, 1, 0])])
    aten.index.Tensor(x, [None, torch.tensor([[0, 1], [1, 0], [1, 1]])])
    if dtype != torch.int64:
        aten.nanmean.default(x, [0])
    for name in "new_zeros", "new_ones", "new_empty":
        getattr(aten, name).default(x, [3, 5])
    aten.new_full.default(x, [3, 5], 2)
    edges = torch.tensor([-1, 0, 1]).to(dtype)
    for options in {}, {"right": True}, {"out_int32": True}:
        aten.bucketize.Tensor(x, edges, **options)
    aten.bucketize.Scalar(0.3, edges)
    aten.isin.Tensor_Tensor(x, edges)
    aten.where.self(x > 0, x, x + 1)


@over(FLOATS[:2], [(4, 6, 5, 5, 4), (2, 4, 4, 3, 6), (3, 2, 4, 4, 5), (5, 4, 3, 4, 4), (6, 3, 3, 5, 4)])
def of_volumes(shape, dtype):
    n, c, d, h, w = shape
    x = draw(shape, dtype)
    kernel = draw((6, c, 3, 3, 3), dtype)
    bias = draw((6,), dtype)
    aten.slow_conv3d_forward.default(x, kernel, [3, 3, 3], bias, [1, 1, 1], [0, 0, 0])
    aten.slow_conv3d.default(x, kernel, [3, 3, 3], bias)
    aten.slow_conv_dilated3d.default(x, kernel, [3, 3, 3], bias)
    for given in x, x[0].clone():
        for added in bias, None:
            aten.conv3d.default(given, kernel, added)
            aten.conv3d.padding(given, kernel, added, [1], "same")
    for scale in (None, [2.0, 1.5, 1.0]):
        size = None if scale else [d + 1, h + 2, w + 3]
        aten._upsample_nearest_exact3d.vec(x, size, scale)
    aten._upsample_nearest_exact3d.default(x, [d + 1, h + 2, w + 3])
    aten._upsample_nearest_exact3d_backward.default(draw((n, c, d + 1, h + 2, w + 3), dtype), [d + 1, h + 2, w + 3], [n, c, d, h, w])


@over(FLOATS[:2], [(4, 6, 5, 5), (2, 4, 7, 6), (3, 2, 4, 8), (5, 4, 6, 4), (1, 8, 5, 6)])
def of_images(shape, dtype):
    n, c, h, w = shape
    x = draw(shape, dtype)
    weight, bias, mean, var = (draw((c,), dtype, 0.5) for _ in range(4))
    for training in True, False:
        aten.native_batch_norm.default(x, weight, bias, mean.clone(), var.clone(), training, 0.1, 1e-5)
        aten._native_batch_norm_legit.default(x, weight, bias, mean.clone(), var.clone(), training, 0.1, 1e-5)
        aten._native_batch_norm_legit_functional.default(x, weight, bias, mean, var, training, 0.1, 1e-5)
    aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5)
    aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, var, 0.1, 1e-5)
    aten._batch_norm_no_update.default(x, weight, bias, mean, var, 0.1, 1e-5)
    aten._batch_norm_with_update.default(x, weight, bias, mean.clone(), var.clone(), 0.1, 1e-5)
    aten.batch_norm_update_stats.default(x, mean, var, 0.1)
    aten._upsample_bicubic2d_aa_backward.default(draw((n, c, h + 2, w + 3), dtype), [h + 2, w + 3], [n, c, h, w], False)
    kernel = draw((6, c, 3, 3), dtype)
    aten.slow_conv_dilated2d.default(x, kernel, [3, 3], draw((6,), dtype))
    aten._convolution.deprecated(x, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True)
    for given in x, x[0].clone():
        for added in draw((6,), dtype), None:
            aten.conv2d.padding(given, kernel, added, [1], "same")
    aten._convolution.default(x, kernel, draw((6,), dtype), [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True, True)
    aten.convolution.default(x, kernel, draw((6,), dtype), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    aten.convolution.default(x, draw((c, 3, 2, 2), dtype), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)
    grad = draw((n, 6, h, w), dtype)
    aten.convolution_backward.default(grad, x, kernel, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    aten.thnn_conv2d.default(x, kernel, [3, 3])
    aten.native_channel_shuffle.default(x, 2)
    aten.channel_shuffle.default(x, 2)
    aten.native_group_norm.default(x, weight, bias, n, c, h * w, 2, 1e-5)
    theta = draw((n, 2, 3), dtype)
    aten.affine_grid_generator.default(theta, [n, c, h, w], False)
    aten.affine_grid_generator_backward.default(draw((n, h, w, 2), dtype), [n, c, h, w], False)
    for scale in (None, [2.0, 1.5]):
        size = None if scale else [h + 2, w + 3]
        for name in "upsample_nearest2d", "_upsample_nearest_exact2d":
            getattr(aten, name).vec(x, size, scale)
        for name in "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa":
            getattr(aten, name).vec(x, size, False, scale)


@over(FLOATS[:2], [(3, 4, 5), (2, 5, 6), (4, 3, 4), (5, 2, 3), (1, 6, 4)])
def of_sequences(shape, dtype):
    b, t, f = shape
    hidden = 3
    weights = [draw((4 * hidden, f), dtype), draw((4 * hidden, hidden), dtype), draw((4 * hidden,), dtype),
               draw((4 * hidden,), dtype)]
    x, h, c = draw((b, t, f), dtype), draw((1, b, hidden), dtype), draw((1, b, hidden), dtype)
    aten.lstm.input(x, [h, c], weights, True, 1, 0.0, False, False, True)
    aten.lstm_cell.default(x[:, 0], [h[0], c[0]], *weights)
    weights3 = [weight[:3 * hidden] for weight in weights]
    aten.gru.input(x, h, [weight.clone() for weight in weights3], True, 1, 0.0, False, False, True)
    aten.gru_cell.default(x[:, 0], h[0], *[weight.clone() for weight in weights3])
    weights1 = [weight[:hidden].clone() for weight in weights]
    for name in "rnn_tanh", "rnn_relu":
        getattr(aten, name).input(x, h, weights1, True, 1, 0.0, False, False, True)
        getattr(aten, name + "_cell").default(x[:, 0].clone(), h[0].clone(), *weights1)
    aten.conv_tbc.default(x, draw((3, f, 4), dtype), draw((4,), dtype), 1)
    aten.conv1d.padding(x, draw((4, t, 3), dtype), None, [1], "same")
    aten.pad_sequence.default([x[0].clone(), x[-1][:1].clone()])
    mask = draw((b, t, f), torch.bool)
    aten._masked_softmax.default(x, mask, 2, 2) if b > 1 else None
    ids = torch.randint(0, 7, (b, t))
    table = draw((7, f), dtype)
    aten.embedding.default(table, ids)
    aten.embedding_dense_backward.default(x, ids, 7, -1, False)
    aten.embedding_bag.default(table, ids.flatten(), torch.arange(0, b * t, t))


@over([torch.float32, torch.float64])
def random_numbers(shape, dtype):
    x = draw(shape, dtype, 0, 1)
    aten.bernoulli.p(x, 0.3)
    aten.bernoulli_.Tensor(x.clone(), x.clone())
    aten.bernoulli_.float(x.clone(), 0.3)
    aten.binomial.default(torch.full(shape, 5, dtype=dtype), x)
    aten.poisson.default(x)
    aten._standard_gamma.default(x + 0.5)
    aten._sample_dirichlet.default(x + 0.5) if x.numel() else None
    aten.random_.default(x.clone())
    aten.random_.to(x.clone(), 9)
    aten.random_.__getattr__("from")(x.clone(), 2, 9)
    aten.normal_functional.default(x)
    aten.uniform_.default(x.clone())
    aten.rand_like.default(x)
    aten.randint_like.default(x, 9)
    aten.randint_like.low_dtype(x, 2, 9)
    aten.rand_like.generator(x, generator=None)
    aten.randn_like.generator(x, generator=None)
    aten.randint_like.generator(x, 9, generator=None)
    aten.randint_like.low_generator_dtype(x, 2, 9, generator=None)


@over(FLOATS + [torch.int64, torch.complex64], [(5, 4), (6,), (3, 2, 7), (4, 0), (9,)])
def factories(shape, dtype):
    options = {"dtype": dtype}
    for name in "zeros", "ones", "empty":
        getattr(aten, name).default(shape, **options) if hasattr(getattr(aten, name), "default") else \
            aten.empty.memory_format(shape, **options)
    aten.full.default(shape, 3, **options)
    aten.scalar_tensor.default(3, **options)
    if not dtype.is_complex:
        aten.eye.default(shape[0], **options)
        aten.eye.m(shape[0], shape[-1], **options)
        aten.arange.default(shape[0], **options)
        aten.arange.start(2, shape[0] + 2, **options)
        aten.arange.start_step(2, 20, shape[0], **options)
        aten.linspace.default(0, 1, shape[0], **options) if dtype.is_floating_point else None
        aten.logspace.default(0, 1, shape[0], **options) if dtype.is_floating_point else None
        aten.range.step(0, shape[0], 1, **options)
        aten.randint.default(9, shape, **options)
        aten.randint.low(2, 9, shape, **options)
    if dtype.is_floating_point:
        aten.rand.default(shape, **options)
        aten.randn.default(shape, **options)
        aten.fft_fftfreq.default(shape[0], **{"dtype": torch.float64})
        aten.fft_rfftfreq.default(shape[0], **{"dtype": torch.float64})
        for name in "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window":
            getattr(aten, name).default(shape[0], dtype=torch.float64)
            getattr(aten, name).periodic(shape[0], False, dtype=torch.float64)
    if dtype == torch.int64:
        aten.randperm.default(shape[0], **options)
        aten.tril_indices.default(shape[0], shape[-1])
        aten.triu_indices.default(shape[0], shape[-1])


@over([torch.float32, torch.int64, torch.bfloat16])
def of_a_tensors_own_sizes(shape, dtype):
    x = draw(shape, dtype)
    x.new_zeros(x.shape)
    x.new_ones(x.shape, dtype=torch.float64)
    x.new_full(x.shape, 3)
    x.new_empty(x.shape)
    x.new_empty_strided(x.shape, x.stride())


@over([torch.float32, torch.float64, torch.bfloat16], [(0,), (4, 0), (2, 0, 3), (0, 5), (3, 0, 2, 1)])
def nothing(shape, dtype):
    x = draw(shape, dtype)
    aten.mul.Tensor(x, draw(shape, dtype))
    aten.mul.Tensor(x, 2)
    aten.to.dtype(x, torch.float16)
    aten.broadcast_to.default(x, (2, *shape))


@over([torch.float32, torch.float64], [(0, 1), (0, 2), (0, 3), (0, 5)])
def pooling_of_nothing(shape, dtype):
    x, gradient = draw((*shape, 4, 4, 6), dtype), draw((*shape, 2, 2, 3), dtype)
    aten.avg_pool3d.default(x, [2])
    aten.avg_pool3d_backward.default(gradient, x, [2], [], [0], False, True, None)


@over([torch.float32, torch.float64], [(2, 4, 3), (5, 3, 3), (3, 2, 4), (1, 5, 2), (2, 3, 2, 3), (3, 2, 3, 3), (2, 2, 4, 3)])
def unpacked(shape, dtype):
    factors, pivots = torch.linalg.lu_factor(draw(shape, dtype))
    for data, wanted in itertools.product((True, False), repeat=2):
        aten.lu_unpack.default(factors, pivots, data, wanted)


@over([torch.float32, torch.float64], [(2, 3, 4), (1, 2, 5), (4, 3, 2), (3, 1, 4, 2), (2, 2, 3, 5), (1, 3, 2, 4)])
def expanded(shape, dtype):
    aten.expand_copy.default(draw(shape, dtype), (2, *shape))


@over([torch.complex64, torch.complex128], [(3, 4, 5), (2, 3, 7), (5, 2, 4), (1, 6, 3)])
def inverse_transforms(shape, dtype):
    aten.fft_ifft.default(draw(shape, dtype), None, 1)


@over([torch.float32, torch.float64, torch.complex64], [(2, 3), (5, 4), (1, 2), (3, 1, 3), (4, 2), (2, 3, 2)])
def indefinite_systems(shape, dtype):
    matrix = draw((*shape, shape[-1]), dtype)
    factors, pivots, _ = torch.linalg.ldl_factor_ex(matrix + matrix.mT)
    aten.linalg_ldl_solve.default(factors, pivots, draw((*shape, 2), dtype))
    aten.linalg_ldl_solve.default(factors, pivots, draw((shape[-1], 2), dtype))


# batch, heads, queries, keys, width
ATTENTION = [(4, 6, 8, 7, 5), (3, 2, 5, 5, 4), (2, 4, 3, 6, 8), (1, 3, 7, 2, 5), (5, 1, 4, 4, 2)]


@over([torch.float32, torch.float64, torch.bfloat16], ATTENTION)
def attention(shape, dtype):
    batch, heads, queries, keys, width = shape
    query = draw((batch, heads, queries, width), dtype)
    key, value = draw((batch, heads, keys, width), dtype), draw((batch, heads, keys, width), dtype)
    shapes = (queries, keys), (1, keys), (batch, 1, queries, keys), (batch, 1, 1, keys), (1, heads, queries, keys), \
        (batch, heads, queries, keys)
    masks = [None] + [draw(shape, dtype) for shape in shapes]
    some = draw((queries, keys), torch.bool)
    some[:, 0] = True  # whoever may see nothing has no value
    for mask in [*masks, some]:
        aten.scaled_dot_product_attention.default(query, key, value, mask)
        aten._scaled_dot_product_attention_math.default(query, key, value, mask)
    for mask, causal in [(mask, False) for mask in masks] + [(None, True)]:
        options = {"attn_mask": mask}
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu.default(query, key, value, 0.0, causal, **options)
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            draw(out.shape, dtype), query, key, value, out, sums, 0.0, causal, **options)
    # Two heads of queries to each of keys.
    query = draw((batch, 2 * heads, queries, width), dtype)
    for mask, causal in (None, False), (masks[1], False), (None, True):
        aten.scaled_dot_product_attention.default(query, key, value, mask, 0.0, causal, enable_gqa=True)
        aten._scaled_dot_product_attention_math.default(query, key, value, mask, 0.0, causal, enable_gqa=True)


@over([torch.float32, torch.float64, torch.bfloat16], [(5, 7), (6, 3), (3, 4, 2), (2, 5, 3), (4, 6), (2, 3, 4, 2)])
def classification(shape, dtype):
    x, classes = draw(shape, dtype), shape[1]
    target = draw((shape[0], *shape[2:]), torch.int64, 0, classes)
    target[0] = -100  # ignored
    for weight, reduction in itertools.product((None, draw((classes,), dtype, 0, 2)), range(3)):
        aten.cross_entropy_loss.default(x, target, weight, reduction, -100, 0.0)
        aten.nll_loss_nd.default(x.log_softmax(1), target, weight, reduction, -100)


@over(FLOATS + [torch.int64], SHAPES)
def choices(shape, dtype):
    x, condition = draw(shape, dtype), draw(shape, torch.bool)
    aten.where.Scalar(condition, 1, 2)
    aten.where.Scalar(condition, 1.5, 2.5)
    aten.where.ScalarOther(condition, x, 2)
    aten.where.ScalarSelf(condition, 2, x)
    aten.masked_fill.Tensor(x, condition, torch.tensor(3, dtype=dtype))
    aten.masked_fill.Tensor(x, condition[:1], torch.tensor(3, dtype=dtype))


# What dispatch/composed_operators.h says, of PyTorch's operators.
ours = torch.library.Library("dtorch", "DEF")
ours.define("apply_rotary_emb(Tensor x, Tensor cos, Tensor sin) -> Tensor")
ours.define("silu_linear_chunk(Tensor x, Tensor weight, Tensor? bias=None, int chunks=2) -> Tensor[]")
ours.define(
    "layer_norm_mul_add(Tensor x, int[] normalized_shape, Tensor factor, Tensor addend, float eps=1e-05) -> Tensor")


@torch.library.impl(ours, "apply_rotary_emb", "CompositeExplicitAutograd")
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.stack([-x[..., half:], x[..., :half]], -2).flatten(-2)
    return torch.addcmul(sin * turned, x, cos)


@torch.library.impl(ours, "silu_linear_chunk", "CompositeExplicitAutograd")
def silu_linear_chunk(x, weight, bias=None, chunks=2):
    product = (x / (1 + torch.exp(-x))) @ weight.T
    parts = (product if bias is None else product + bias).chunk(chunks, -1)
    return [part.contiguous() for part in parts]


@torch.library.impl(ours, "layer_norm_mul_add", "CompositeExplicitAutograd")
def layer_norm_mul_add(x, normalized_shape, factor, addend, eps=1e-5):
    dims = list(range(-len(normalized_shape), 0))
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * factor + addend


@over(FLOATS, [(3, 5, 2, 4), (6, 8), (2, 7, 6), (1, 4, 3, 2), (5, 1, 10)])
def of_transformers(shape, dtype):
    x, width = draw(shape, dtype), shape[-1]
    angles = draw((*shape[-2:-1], width), torch.float64, -3, 3)
    torch.ops.dtorch.apply_rotary_emb(x, angles.cos().to(dtype), angles.sin().to(dtype))
    angles = draw(shape, torch.float64, -3, 3)
    torch.ops.dtorch.apply_rotary_emb(x, angles.cos().to(dtype), angles.sin().to(dtype))
    for chunks in 2, 3:
        weight, bias = draw((6, width), dtype), draw((6,), dtype)
        torch.ops.dtorch.silu_linear_chunk(x, weight, bias, chunks)
        torch.ops.dtorch.silu_linear_chunk(x, weight, None, chunks)
    for normalized in shape[-1:], shape[-2:]:
        for other in shape, normalized, (shape[0], *[1] * (len(shape) - 2), width):
            torch.ops.dtorch.layer_norm_mul_add(x, normalized, draw(other, dtype), draw(other, dtype))


def programs():
    """(name, function) of all."""
    for name, value in list(globals().items()):
        if isinstance(value, list) and value and isinstance(value[0], functools.partial):
            yield from ((name, function) for function in value)
