"""tcgemm as operators of torch: what a call goes through that torch has to see.

``call`` sends here what the launch cache does not take: gradients, tangents, dispatch modes,
transforms of torch.func, autocast, traces and tensors without memory. The operators are registered
when this package is imported, which the first use of ``tcgemm.gemm`` or ``tcgemm.matmul`` does.
"""

from . import vmap as vmap
from .autocast import enabled as autocast_enabled  # noqa: F401
from .eager import product as eager_product  # noqa: F401
from .entry import multiply as multiply
from .entry import seen_by_torch as seen_by_torch
from .entry import traced as traced
from .mlp import product as eager_mlp  # noqa: F401
from .mlp_traced import mlp as traced_mlp  # noqa: F401
from .registered_late import look as register_late  # noqa: F401
