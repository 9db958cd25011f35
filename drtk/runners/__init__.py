"""Who runs a batch function over the windows of a stream, by name."""

from drtk.registry import Registry

RUNNERS = Registry(
    "runner",
    {
        "local": ("drtk.runners.local:run_local", "in this process, reading and writing beside the work"),
        "ray": ("drtk.runners.ray:run_on_ray", "on Ray Data: many GPUs, many machines, lost workers replaced"),
    },
)
