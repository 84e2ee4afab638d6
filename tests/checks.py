"""What tests of several files share: programs to run, what they should do, and how to compare.

Compiling is most of what the suite does. So references are computed once per process (`plain`,
`plain_gradient`, `expected_of`), and properties that can be checked for several programs at once
are checked on medleys: programs that run one after the other as one compiled function, in which
every key begins with the name of its program. What holds to the bit is tested one program at a
time, optimized as users have it; of `watch`, for the programs of `COVER`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from lanes import lane_histories, to_numpy
from programs import PROGRAMS, XS

import spoolax

CAPACITY = 40  # More than any program logs.
BATCH = jnp.stack([XS, XS[::-1]])

# For what depends on an option or a listener rather than on the program. The first part has each
# pair of a construct and what it directly contains, a log or another construct, that occurs in the
# table (`test_the_cover_has_every_pair_of_constructs`). The second has what nesting does not show:
# calls, order, masks of branches and loops by lane, derivatives, recomputation, devices, types.
COVER = (
    "nested_scans",
    "while_loop_in_scan",
    "while_loop_with_a_log_in_its_test",
    "nested_while_loops",
    "scan_in_while_loop",
    "cond_in_scan",
    "scan_in_cond",
    "while_loop_in_cond",
    "vmap_scan",
    "vmap_while",
    "remat",
    "remat_of_remat_of_while",
    "custom_derivatives_in_scan",
    "custom_vmap",
    "custom_root",
    "custom_linear_solve",
    #
    "nested_jit",
    "scan_reverse",
    "cond_with_unequal_branches",
    "vmap_scan_cond",
    "vmap_while_in_scan",
    "nested_vmaps",
    "training_loop",
    "remat_of_while_with_a_log_in_its_test",
    "cond_in_scan_in_shard_map",
    "dtypes",
)
REST = tuple(name for name in PROGRAMS if name not in COVER)


def programs(names=tuple(PROGRAMS), **properties):
    """Run a test for each program with these properties."""
    return pytest.mark.parametrize("name", having(names, properties))


def having(names, properties):
    return [
        name
        for name in names
        if all(getattr(PROGRAMS[name], key) == value for key, value in properties.items())
    ]


def medleys(names=tuple(PROGRAMS), size=4, **properties):
    """Run a test for all programs with these properties, several at a time.

    Programs that need several devices, and those that log random keys (which some options refuse),
    are run each by itself, so that the others stay what they are. Compiling takes longer than
    running here, so the compiler does not optimize.
    """
    names = having(names, properties)
    alone = [name for name in names if not PROGRAMS[name].mixes]
    rest = [name for name in names if PROGRAMS[name].mixes]
    groups = [rest[i : i + size] for i in range(0, len(rest), size)] + [[name] for name in alone]
    ids = [names[0] if len(names) == 1 else f"{names[0]}...{names[-1]}" for names in groups]
    each = pytest.mark.parametrize("names", [tuple(names) for names in groups], ids=ids)
    return lambda test: each(pytest.mark.usefixtures("unoptimized")(test))


def f_of(name):
    f = PROGRAMS[name].f
    return lambda xs: f(xs)  # A function of its own, so that no test sees another's caches.


def medley(names):
    """Several programs as one function, which returns their outputs by name."""

    def f(xs):
        outputs = {}
        for name in names:
            with oracle.prefix(f"{name}: "):
                outputs[name] = PROGRAMS[name].f(xs)
        return outputs

    return f


def program_of(key):
    """Find the program of a medley that logged a key."""
    return PROGRAMS[key.partition(": ")[0]]


def total(f):
    """The sum of everything that a function returns, to be differentiated."""
    return lambda xs: sum(jnp.sum(y) for y in jax.tree.leaves(f(xs)))


@functools.cache
def plain(name):
    """What the program returns when nobody listens."""
    return jax.jit(f_of(name))(XS)


@functools.cache
def plain_gradient(name):
    return jax.jit(jax.grad(total(f_of(name))))(XS)


@functools.cache
def expected_of(name):
    """What the program logs, as a list of (lane, key, value, steps)."""
    program = PROGRAMS[name]
    return oracle.run(program.f, XS) if program.expected is None else program.expected


@functools.cache
def spooled(names):
    """The output and logs of a medley, for each lane of the batch. The first lane is `XS`."""
    spool = spoolax.spool(medley(names))
    return [spool(xs) for xs in BATCH]


def tapped(f, *args, **options):
    """Return the output of a function, and what its callback got."""
    seen = []
    y = spoolax.tap(f, seen.append, **options)(*args)
    spoolax.flush()
    return y, seen


def assert_equal_to_the_bit(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)

    def same(path, x, y):
        x, y = to_numpy(x), to_numpy(y)
        where = jax.tree_util.keystr(path)
        assert x.dtype == y.dtype, where
        assert x.tobytes() == y.tobytes(), (where, x, y)

    jax.tree_util.tree_map_with_path(same, a, b)


def assert_same_lane(outputs, output, i):
    """Compare one lane of what a mapped function returns with what the function returns."""

    def same(path, a, b):
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a[i], b, rtol=1e-6, err_msg=where)

    jax.tree_util.tree_map_with_path(same, outputs, output)


def assert_same_rows(got, want, key, rtol=0.0):
    """Compare the values, steps and masks of a key, where the mask says that it was logged."""
    (value, steps, mask), (want_value, want_steps, want_mask) = got, want

    def compare(a, b):
        keep = want_mask.reshape(want_mask.shape + (1,) * (a.ndim - want_mask.ndim))
        if rtol:  # Complex numbers hold those of all other types.
            a, b = a.astype(complex), b.astype(complex)
        a, b = (np.where(keep, x, np.zeros_like(x)) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=rtol, err_msg=key)

    np.testing.assert_array_equal(mask, want_mask, err_msg=key)
    assert set(steps) == set(want_steps), key
    jax.tree.map(compare, (value, steps), (want_value, want_steps))


def logged_rows(value, steps, mask):
    """Leave out the rows that nobody logged."""
    rows = mask.any(tuple(range(1, mask.ndim)))
    return jax.tree.map(lambda x: x[rows], (value, steps, mask))


def lane_of(logs, key, i, want):
    """Pick a lane of a key; one that does not depend on the lane is the same in all of them."""
    value, steps, mask = lane_histories(logs, key)
    if mask.ndim == lane_histories(want, key)[2].ndim:
        return value, steps, mask
    return jax.tree.map(lambda x: x[:, i], (value, steps, mask))
