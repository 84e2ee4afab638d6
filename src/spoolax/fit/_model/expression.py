"""Models that are written as text, such as `a*exp(-b*x)+c`."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ...errors import LogValueError

# fmt: off
PLAIN = (
    "abs", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "cbrt", "sin", "cos", "tan",
    "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "arcsinh", "arccosh",
    "arctanh", "sinc", "minimum", "maximum", "where",
)
# fmt: on
SPECIAL = ("erf", "erfc", "gammaln")
FUNCTIONS = frozenset((*PLAIN, *SPECIAL))
CONSTANTS = {"pi": jnp.pi, "e": jnp.e}
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Expression:
    """A model of x. All unknown names are parameters, in order of appearance.

    With one variable, x is its values, and the text calls it "x" or by its name; with several, x is
    a dictionary of them. Nothing but arithmetic is evaluated, so text from anywhere is safe.
    """

    def __init__(self, text: str, variables: tuple[str, ...] = ("x",)) -> None:
        self.text = text
        self._variables = variables
        try:
            self._tree = ast.parse(text.strip().replace("^", "**"), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise LogValueError(
                f"The model {_short(text)} is not an expression: {error}"
            ) from error
        nodes = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
        nodes.sort(key=lambda node: (node.lineno, node.col_offset))
        names = list(dict.fromkeys(node.id for node in nodes))
        ours = {"x", *variables} if len(variables) == 1 else {*variables}
        self.parameters = [n for n in names if n not in ours | {*FUNCTIONS, *CONSTANTS}]
        if not ours & {*names}:
            raise LogValueError(f"The model {text!r} does not depend on {' or '.join(variables)}.")
        if not self.parameters:
            raise LogValueError(f"The model {text!r} has no parameters to fit.")
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        first = "_x" + "_" * max(map(len, self.parameters))  # Not the name of a parameter.
        signature = [inspect.Parameter(name, kind) for name in (first, *self.parameters)]
        self.__signature__ = inspect.Signature(signature)

    def __call__(self, x: Any, *parameters: Any) -> Any:
        values = {**CONSTANTS, **dict(zip(self.parameters, parameters, strict=True))}
        if len(self._variables) == 1:
            values |= {"x": x, self._variables[0]: x}
        else:
            values |= {name: x[name] for name in self._variables}
        try:
            return self._value(self._tree, values)
        except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
            if isinstance(error, LogValueError):
                raise
            raise LogValueError(f"The model {_short(self.text)} fails: {error}") from error

    def _value(self, node: ast.AST, values: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return float(number)  # Powers of integers could become arbitrarily large.
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.BinOp(left=a, op=op, right=b) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self._value(a, values), self._value(b, values))
            case ast.UnaryOp(op=op, operand=a) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self._value(a, values))
            case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self._value(a, values), self._value(b, values))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                return _function(name)(*(self._value(a, values) for a in args))
        raise LogValueError(
            f"{_short(ast.unparse(node))} is not possible in the model {_short(self.text)}. Use "
            f"numbers, names, + - * / ** and functions ({', '.join(sorted(FUNCTIONS))})."
        )


def _function(name: str) -> Callable[..., Any]:
    if name in PLAIN:
        return getattr(jnp, name)  # type: ignore[no-any-return]
    from jax.scipy import special  # Importing it takes as long as importing spoolax.

    return getattr(special, name)  # type: ignore[no-any-return]


def _short(text: str) -> str:
    return repr(text if len(text) < 100 else f"{text[:80]}...")
