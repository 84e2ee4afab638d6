"""The smallest programs that went wrong, or would if something of spoolax were taken away."""

from fuzz.grammar import Node, program

LOG, CONSTANT = Node("log"), Node("constant")

FOUND = {
    "masks of batched branches": program(Node("vmap", 0, (Node("cond", 0, (LOG,)),))),
    "masks of batched loops": program(Node("vmap", 0, (Node("while_loop", 0, (LOG,)),))),
    "entries of differentiated scans": program(Node("grad", 0, (Node("scan", 2, (CONSTANT,)),))),
    "counters of loops in differentiated scans": program(
        Node("grad", 0, (Node("scan", 2, (Node("while_loop", 1, (LOG,)),)),))
    ),
    "the order of while loops and others in differentiated scans": program(
        Node("grad", 0, (Node("scan", 2, (LOG, Node("while_loop", 1, (Node("add", 1), LOG)))),))
    ),
    "the order of while loops and others in checkpoints": program(
        Node(
            "grad", 0, (Node("checkpoint", 0, (LOG, Node("while_loop", 1, (Node("add", 1), LOG)))),)
        )
    ),
    "iterations of the tests of loops": program(Node("test", 2, (LOG,))),
    "logs of devices in while loops": program(
        Node("while_loop", 1, (Node("shard_map", 0, (LOG,)),))
    ),
    "devices outside of lanes": program(
        Node("vmap", 0, (Node("tap", 0, (Node("shard_map", 0, (LOG,)),)),))
    ),
    "the order of keys of which a tap inside gets some": program(
        Node("tap", 3, (Node("pair of keys", 1),)), LOG
    ),
    "cotangents in functions that backward rules run again": program(
        Node("grad", 1, (Node("rules", 1, (Node("grad", 1, (Node("log_grad", 1),)),)),))
    ),
    "tests of loops in a tap": program(Node("tap", 1, (Node("test", 1, (LOG,)),))),
    "the order of reverse scans": program(Node("reverse", 2, (LOG, Node("add", 1)))),
    "functions with rules in while loops of checkpoints": program(
        Node(
            "grad",
            1,
            (Node("checkpoint", 1, (Node("while_loop", 1, (Node("rules", 1, (LOG,)),)),)),),
        )
    ),
    "functions with rules in a listener that is differentiated twice": program(
        Node("grad", 1, (Node("grad", 1, (Node("spool", 1, (Node("rules", 1, (LOG,)),)),)),))
    ),
    "numbers that are no arrays, in branches": program(
        Node("switch", 2, (Node("associative_scan", 1, (Node("steps", 1),)),))
    ),
    "functions with rules in several listeners inside of a derivative": program(
        Node("grad", 1, (Node("spool", 1, (Node("tap", 1, (Node("custom_jvp", 1, (LOG,)),)),)),))
    ),
    "loops in all branches in which some entries are conditional": program(
        Node("switch", 1, (Node("scan", 1, (Node("cond", 1, (LOG, LOG, Node("log", 2))),)),))
    ),
}

# With the options that they need.
FOUND_WITH = {
    "windows of scans in branches that are differentiated": (
        program(Node("grad", 0, (Node("cond", 0, (CONSTANT, Node("scan", 3, (LOG,)))),))),
        {"interval": 2},
    ),
    "windows of scans in branches that were not taken, in shard_map": (
        program(
            Node(
                "replicated",
                1,
                (Node("scan", 2, (Node("cond", 1, (Node("scan", 1, (LOG,)),)), Node("log", 1))),),
            )
        ),
        {"interval": 2},
    ),
}
