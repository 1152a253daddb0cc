"""A method of one's own: FedAvg whose clients average their last models, beside FedAvg itself.

``python examples/own_method.py`` trains both; ``fedsmoo run --algorithm examples/own_method.py:Averaged --set
share=0.9`` trains this one alone.
"""

from dataclasses import dataclass

from fedsmoo import FedAvg, Vectors, option, simulate
from fedsmoo.testing import check_algorithm


@dataclass(frozen=True)
class Averaged(FedAvg):
    """Clients send a moving average of their local models, which jumps less than the last one.

    client   w_i <- w_i - lr g(w_i);   a <- share a + (1 - share) (w_i - w)     K times, a from 0;   sends w + a
    server   as FedAvg
    """

    local = ("a",)  # a vector that lives for one round; it starts as zeros
    share: float = option(0.5, "weight of the older models in the average", within="[0, 1)")

    def moved(self, w, down, me):
        return self.share * me.a + (1 - self.share) * (w - down.w)

    def direction(self, w, grad, down, me):  # w is the model before this step: what the last one came to
        return grad(w), me.replace(a=self.moved(w, down, me))

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=down.w + self.moved(w, down, me))


def main():
    check_algorithm(Averaged())
    task = {"clients": 20, "cohort": 4, "rounds": 15, "partition": "dirichlet-1", "device": "cpu"}
    results = {method.label: simulate("mlp", "digits", method, **task) for method in (FedAvg(), Averaged(share=0.8))}
    for name, result in results.items():
        print(f"{name:<10} {result.accuracy:.4f}")
    return results


if __name__ == "__main__":
    main()
