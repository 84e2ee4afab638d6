"""Training with flax's nnx, whose functions change their arguments in place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax

import spoolax
from spoolax.loggers import RingBufferLogger

X = jax.random.normal(jax.random.key(1), (16, 3))
Y = X.sum(1, keepdims=True)


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(3, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)
        self.calls = nnx.Variable(jnp.int32(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def step(model, optimizer, x, y):
    def loss_of(model):
        return jnp.mean((model(x) - y) ** 2)

    loss, grads = nnx.value_and_grad(loss_of)(model)
    spoolax.log({"loss": loss})
    optimizer.update(model, grads)
    return loss


def trained(step):
    """Every number in a model and its optimizer, after some steps."""
    model = Model()
    optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
    for _ in range(3):
        step(model, optimizer, X, Y)
    assert model.calls[...] == 3
    state = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in state
    ]


@functools.cache
def trained_alone():
    return trained(nnx.jit(step))


LISTENERS = {
    "spool": spoolax.spool,
    "tap": lambda f: spoolax.tap(f, lambda logs: None),
    # Not of products: those are computed in another way if somebody sees them (docs/spool.md).
    "watch": lambda f: spoolax.watch(f, lambda logs: None, primitives="max"),
    "watch_nan": spoolax.watch_nan,
}


@pytest.mark.parametrize("way", ["around nnx.jit", "around a plain function", "inside nnx.jit"])
@pytest.mark.parametrize("name", LISTENERS)
def test_a_training_step_trains_as_it_does_alone(name, way):
    """Weights, moments, running averages and counters of keys, to the bit."""
    listen = LISTENERS[name]
    steps = {
        "around nnx.jit": lambda: listen(nnx.jit(step)),
        "around a plain function": lambda: listen(step),
        "inside nnx.jit": lambda: nnx.jit(listen(step)),
    }
    for got, wanted in zip(trained(steps[way]()), trained_alone(), strict=True):
        np.testing.assert_array_equal(got, wanted)


class Layer(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))
        self.count = 0

    def add(self, x):
        self.w[...] += x
        spoolax.log({"w": self.w[...]})
        return self.w[...]

    @nnx.jit
    def twice(self, x):
        return self.add(2 * x)

    def __call__(self, x):
        return x * self.w[...]


@pytest.fixture(params=["spool", "tap"])
def listen(request, unoptimized):
    if request.param == "tap":
        return lambda f: spoolax.tap(f, lambda logs: None)

    def spooled(f):
        spooled = spoolax.spool(f)
        return lambda *args, **kwargs: spooled(*args, **kwargs)[0]

    return spooled


def test_what_is_shared_stays_shared(listen):
    """Between two arguments, in lists and keywords, and in a module that contains itself."""
    layer, other = Layer(), Layer()
    layer.me = nnx.data(layer)

    def f(a, b, *, c):
        assert a is b["layers"][0] is c.me
        a.w[...] += 1
        b["layers"][0].me.w[...] *= 2
        b["layers"][1].w[...] += 5
        return a, [b["layers"][1]]

    for _ in range(2):
        same, (second,) = listen(f)(layer, {"layers": [layer, other]}, c=layer)
        assert same is layer
        assert second is other
    np.testing.assert_array_equal(layer.w[...], [10.0, 10.0])
    np.testing.assert_array_equal(other.w[...], [11.0, 11.0])


def test_objects_only_in_containers_are_changed_too(listen):
    """No argument is an object of nnx itself."""
    layers = [Layer(), Layer()]
    listen(lambda layers, x: layers[1].add(x))(layers, 1.0)
    np.testing.assert_array_equal(layers[0].w[...], [1.0, 1.0])
    np.testing.assert_array_equal(layers[1].w[...], [2.0, 2.0])


def test_what_a_function_adds_to_a_module_is_there_afterwards(listen):
    """Variables, static attributes and what `sow` records; what it deletes is gone."""
    layer = Layer()
    layer.old = nnx.Param(jnp.ones(1))

    def f(layer, rngs):
        layer.count += 1
        layer.new = nnx.Param(layer.w[...] * 3)
        layer.sow(nnx.Intermediate, "seen", layer.w[...])
        del layer.old
        return jax.random.normal(rngs.params(), ())

    rngs, alone = nnx.Rngs(0), nnx.Rngs(0)
    drawn = listen(f)(layer, rngs)
    assert drawn == jax.random.normal(alone.params(), ())
    assert rngs.params() == alone.params()
    assert layer.count == 1
    assert not hasattr(layer, "old")
    np.testing.assert_array_equal(layer.new[...], [3.0, 3.0])
    np.testing.assert_array_equal(nnx.pop(layer, nnx.Intermediate)["seen"].get_value()[0], [1, 1])


def test_a_model_that_is_made_inside_keeps_what_it_shares(listen):
    """Two names of one module in the output are one module."""

    def make(x):
        layer = Layer()
        layer.w[...] *= x
        return {"a": layer, "b": layer}

    made = listen(make)(3.0)
    assert made["a"] is made["b"]
    np.testing.assert_array_equal(made["a"].w[...], [3.0, 3.0])


def test_loops_of_nnx_log_and_update(unoptimized):
    """`nnx.scan` with a module in the carry, and a while loop whose entries go by the host."""

    def scanned(layer, xs):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def body(layer, x):
            layer.add(x)
            return layer

        body(layer, xs)

    layer = Layer()
    logs = spoolax.spool(scanned)(layer, jnp.arange(3.0))[1]
    assert logs["w"][:, 0].tolist() == [1, 2, 4]
    np.testing.assert_array_equal(layer.w[...], [4.0, 4.0])

    def until(layer, n):
        def body(i):
            spoolax.log({"i": i})
            return i + 1

        layer.w[...] += lax.while_loop(lambda i: i < n, body, 0)

    spooled = spoolax.spool(until)
    for n in (5, 3):
        assert spooled(layer, n)[1]["i"].tolist() == list(range(n))
    np.testing.assert_array_equal(layer.w[...], [12.0, 12.0])


def test_methods_and_models_see_what_has_changed_since(listen):
    """The values of the object are those at the time of the call, not constants."""
    layer = Layer()
    model, add, twice = listen(layer), listen(layer.add), listen(layer.twice)
    partial = listen(functools.partial(Layer.add, x=1.0))
    assert model(1.0).tolist() == [1, 1]
    assert add(1.0).tolist() == [2, 2]
    assert model(1.0).tolist() == listen(layer)(1.0).tolist() == [2, 2]
    assert twice(1.0).tolist() == [4, 4]
    assert partial(layer).tolist() == [5, 5]
    assert listen(functools.partial(layer.add, 1.0))().tolist() == [6, 6]
    assert layer.w[...].tolist() == [6, 6]


def test_static_and_donated_arguments_of_nnx_jit_stay_so(listen):
    """And programs are compiled once for modules of the same structure."""
    traced = []

    @nnx.jit(static_argnums=1, static_argnames="mode", donate_argnums=0)
    def f(layer, n, *, mode="add"):
        traced.append(n)
        for _ in range(n):
            layer.w[...] += 1

    for _ in range(2):
        layer = Layer()
        layer.w.set_value(jnp.ones(1000))
        before = layer.w.get_value()
        listen(f)(layer, 2, mode="add")
        assert before.is_deleted()
        assert layer.w[...][:2].tolist() == [3, 3]
    assert len(traced) == 1


def test_what_jax_jit_drops_is_dropped_and_errors_stay_errors(listen):
    """As without a listener: nothing is changed that would not be, and nothing is hidden."""
    layer = Layer()
    listen(jax.jit(lambda layer: layer.add(1.0)))(layer)
    assert layer.w[...].tolist() == [1, 1]

    def fails(layer):
        layer.add(1.0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        listen(fails)(layer)
    assert layer.w[...].tolist() == [1, 1]
    with pytest.raises(Exception, match="different trace level"):
        listen(lambda x: layer.add(x))(1.0)


def test_derivatives_and_maps_of_nnx_go_around_a_listener(listen):
    """`nnx.grad` and `nnx.vmap` update what the function changes."""
    layer = Layer()

    def loss(layer, x):
        layer.count += 1
        spoolax.log({"x": x})
        return jnp.sum(layer.w[...] * x)

    grads = nnx.grad(listen(loss))(layer, 2.0)
    assert grads["w"].get_value().tolist() == [2, 2]
    assert layer.count == 1
    out = nnx.vmap(listen(loss), in_axes=(None, 0))(layer, jnp.arange(3.0))
    assert out.tolist() == [0, 2, 4]
    assert layer.count == 2


def test_loggers_and_progress_update_objects(unoptimized):
    """They go the same way as `tap`."""
    layer = Layer()
    with RingBufferLogger(9) as logger:
        logger.tap(Layer.add)(layer, 1.0)
        logger.spool(Layer.add)(layer, 1.0)
        state = logger.init(jax.random.key(0))
        logger.tap(Layer.add, state)(layer, 1.0)
        nnx.jit(logger.tap(Layer.add, state))(layer, 1.0)
    assert [record.values["w"][0] for record in logger.records] == [2, 3]
    assert [record.values["w"][0] for record in logger.runs[0].records] == [4, 5]

    def looped(layer):
        layer.w[...] = lax.fori_loop(0, 3, lambda i, w: w + 1, layer.w[...])

    spoolax.progress(looped)(layer)
    assert spoolax.primitives(looped, layer).loops[0].address == "scan[0]"
    assert layer.w[...].tolist() == [8, 8]


def test_a_program_that_is_stopped_leaves_objects_as_they_were(unoptimized):
    layer = Layer()
    before = layer.w[...]

    def grow(layer):
        def body(w, i):
            spoolax.log({"i": i})
            return w + 1, None

        layer.w[...], _ = lax.scan(body, layer.w[...], jnp.arange(10**7))

    def stop(logs):
        raise spoolax.StopRun("enough")

    with pytest.raises(spoolax.StopRun):
        spoolax.tap(grow, stop)(layer)
    np.testing.assert_array_equal(layer.w[...], before)
