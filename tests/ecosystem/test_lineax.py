"""Linear solves of lineax, whose operator is a function that logs."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import spoolax
import spoolax.testing

A = jnp.array([[3.0, 1.0], [1.0, 2.0]])
B = jnp.array([1.0, 2.0])


def plain_matvec(x):
    spoolax.log({"x": x})
    return A @ x


def solve(b, matvec=plain_matvec):
    """Solve with conjugate gradients, which multiply four times."""
    structure = jax.ShapeDtypeStruct(b.shape, b.dtype)
    operator = lx.FunctionLinearOperator(matvec, structure, lx.positive_semidefinite_tag)
    return lx.linear_solve(operator, b, lx.CG(rtol=1e-6, atol=1e-6)).value


def solve_with(a, b):
    """The same with an operator that closes over what is traced, which lineax treats otherwise."""

    def matvec(x):
        spoolax.log({"x": x})
        return a @ x

    return solve(b, matvec)


def total(b):
    return jnp.sum(solve(b))


def in_scan(b):
    return jnp.sum(jax.lax.scan(lambda b, _: (solve(b), None), b, length=2)[0])


@pytest.mark.parametrize(
    ("f", "args", "count"),
    [
        (solve, (B,), 4),
        (solve_with, (A, B), 4),
        (jax.vmap(solve), (jnp.stack([B, 2 * B]),), 4),
        (in_scan, (B,), 8),
        (lambda b: jax.jvp(solve, (b,), (b,)), (B,), 4),
        (jax.grad(total), (B,), 4),
        (jax.grad(in_scan), (B,), 8),
        (jax.vmap(jax.grad(total)), (jnp.stack([B, 2 * B]),), 4),
        (jax.vmap(jax.vmap(solve)), (jnp.stack([B, 2 * B])[:, None],), 4),
        (jax.grad(jax.checkpoint(total)), (B,), 4),
    ],
    ids=[
        "plain",
        "closure",
        "vmap",
        "scan",
        "jvp",
        "grad",
        "grad of scan",
        "vmap of grad",
        "vmap of vmap",
        "grad of checkpoint",
    ],
)
def test_each_multiplication_of_the_solve_is_logged(f, args, count, unoptimized):
    """Not those of solves that a derivative needs besides."""
    expected = jax.jit(f)(*args)
    out, logs = spoolax.spool(f)(*args)
    assert len(logs["x"]) == count
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), out, expected)
    found = []
    out = spoolax.tap(f, found.append)(*args)
    spoolax.flush()
    for each, x in zip(found, logs["x"], strict=True):
        np.testing.assert_array_equal(np.broadcast_to(each["x"], x.shape), x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), out, expected)


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.jacfwd])
def test_what_was_spooled_can_be_transformed(transform, unoptimized):
    spooled = spoolax.spool(total, reduce="max")
    out = transform(lambda b: spooled(b)[0])(B)
    np.testing.assert_allclose(out, jax.jit(transform(total))(B), atol=1e-6)


def test_a_solve_without_logs_is_left_alone():
    def f(b):
        return lx.linear_solve(lx.MatrixLinearOperator(A), b).value

    spooled = jax.make_jaxpr(lambda b: spoolax.spool(f)(b)[0])(B)
    assert "linear_solve" in str(spooled)


def test_a_solve_in_a_step_of_a_simulation_is_heard():
    with spoolax.testing.capture() as captured:
        spoolax.simulate(lambda key, x: solve(x), B, 2, key=jax.random.key(0), logger=captured)
    assert len(captured.values("x")) == 8
