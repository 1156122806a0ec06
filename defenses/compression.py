"""Deep Gradient Compression: sparse updates with momentum correction (Lin et al., ICLR 2018)."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils import get_total_norm

from defenses.sparsify import largest
from fedsim import ClientState, Defense, Update


class DeepGradientCompression(Defense):
    """Sends the largest coordinates of the accumulated update; the client keeps the rest.

    A client stores the momentum u and the accumulated update v. For the update g of a round (Lin et
    al., ICLR 2018, algorithm 4):

        g <- g min(1, clip / ||g||)     local clipping
        u <- momentum u + g             momentum correction
        v <- v + u
        send the kept share of v, largest magnitudes first; then zero v and u there

    `ratio` is the share that is held back (theta in LLG). The warm-up of the paper holds back less
    in the first rounds: 1 - (1 - ratio)^(r / warmup) in a client's r-th round. g is the gradient
    for FedSGD and the delta for FedAvg. If momentum is used here, the server should use none.
    Buffers are sent unchanged.
    """

    name = "deep-gradient-compression"
    keywords = ("sparsification", "pruning", "gradient compression", "error feedback", "DGC")

    ratio: float = Field(default=0.99, ge=0, lt=1)
    """Share of a tensor's coordinates that is held back."""

    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum factor; 0: no momentum correction."""

    clip: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Bound of the L2 norm of g; left out: no clipping."""

    warmup: int = Field(default=0, ge=0, le=10_000)
    """Number of rounds of a client's warm-up."""

    @property
    def remembers(self) -> bool:
        """True: the client keeps what is held back."""
        return True

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Send the largest coordinates of the accumulated update."""
        if self.ratio == 0 and self.momentum == 0 and self.clip is None:
            return update
        gone = int(state.get("rounds", torch.zeros(())))
        state["rounds"] = torch.tensor(gone + 1.0)
        ratio = self.ratio
        if gone + 1 < self.warmup:
            ratio = 1 - (1 - self.ratio) ** ((gone + 1) / self.warmup)
        scale = 1.0
        if self.clip is not None:
            norm = float(get_total_norm(update.tensors.values()))
            scale = min(1.0, self.clip / max(norm, 1e-30))
        waiting: dict[str, Tensor] = {}
        moving: dict[str, Tensor] = {}
        for name, value in update.tensors.items():
            nothing = torch.zeros_like(value)
            moving[name] = self.momentum * state.get(f"u/{name}", nothing) + scale * value
            waiting[name] = state.get(f"v/{name}", nothing) + moving[name]
        masks = largest(waiting, lambda n: n - int(ratio * n + 1e-9))
        sent = {}
        for name, mask in masks.items():
            sent[name] = torch.where(mask, waiting[name], 0)
            state[f"v/{name}"] = torch.where(mask, 0, waiting[name])
            if self.momentum:
                state[f"u/{name}"] = torch.where(mask, 0, moving[name])
        return update.replace(tensors=sent)
