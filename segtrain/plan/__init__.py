"""Times and costs of jobs, predicted before a machine is rented. ``segtrain.plan(config)`` plans a config's job."""

from segtrain.callable_module import make_callable

make_callable(__name__, "segtrain.plan.probe", "plan")
