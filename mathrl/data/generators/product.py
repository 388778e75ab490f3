"""Products and powers, too large for a small model's head; some worked solutions let Python compute them."""

import random

from mathrl.data.generators.draft import Draft
from mathrl.params.generators import ProductOptions


class Product(ProductOptions):
    """Draws the factors, and whether the worked solution calls Python, independently of each other."""

    @property
    def levels(self) -> tuple[int, ...]:
        return self.kinds

    def draw(self, rng: random.Random, level: int) -> Draft:
        if level == 3:
            exponent = rng.randint(2, 3)
            base = rng.randint(11, 9999 if exponent == 2 else 999)
            question, code, value = f"{base}^{exponent}=", f"{base}**{exponent}", base**exponent
        else:
            first, second = rng.randint(100 if level == 2 else 10, 999 if level == 2 else 99), rng.randint(11, 99)
            question, code, value = f"{first}*{second}=", f"{first}*{second}", first * second
        solution = f"{question}{value}"
        if rng.random() < self.calls:
            solution = f"```python\n{code}\n```\n```output\n{value}\n```\n{value}"
        return Draft(question=question, answer=str(value), solution=solution)
