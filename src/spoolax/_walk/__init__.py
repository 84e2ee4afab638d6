"""The only jaxpr walker: it evaluates a program anew, and hands what it logs to a `Meaning`.

`spool`, `tap` and `watch` are meanings. `_listen` and they may import it.
"""

# These fill the table of rules, and make JAX's transformations keep logs.
from . import calls as calls
from . import control as control
from . import shard_map as shard_map
from . import transformations as transformations
