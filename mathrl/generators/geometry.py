"""Plane and solid geometry with exact answers: areas, angles, right triangles, circles, coordinates and solids."""

import random
from fractions import Fraction

from mathrl.generators.draft import Draft
from mathrl.params.generators import GeometryOptions

TRIPLES = ((3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25), (20, 21, 29))


class Geometry(GeometryOptions):
    """Level 1: areas, perimeters; 2: angles; 3: right triangles; 4: circles, similarity; 5: coordinates, solids."""

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        variants = {
            1: (self._rectangle, self._triangle, self._trapezium),
            2: (self._third_angle, self._isosceles, self._regular_polygon, self._quadrilateral),
            3: (self._hypotenuse, self._leg, self._rectangle_diagonal),
            4: (self._ring, self._sector, self._shadow),
            5: (self._vertices, self._box_surface, self._cone),
        }
        return rng.choice(variants[level])(rng)

    def _length(self, rng: random.Random, smallest: int = 2) -> int:
        return rng.randint(smallest, self.largest_number)

    def _rectangle(self, rng: random.Random) -> Draft:
        b, a = sorted((self._length(rng), self._length(rng)))
        shape = f"A rectangle is {a} centimetres long and {b} centimetres wide."
        if rng.random() < 0.5:
            return Draft(f"{shape} What is its area in square centimetres?", str(a * b), f"{a} * {b} = {a * b}", "area")
        steps = f"{a} + {b} = {a + b}\n2 * {a + b} = {2 * (a + b)}"
        return Draft(f"{shape} What is its perimeter in centimetres?", str(2 * (a + b)), steps, "perimeter")

    def _triangle(self, rng: random.Random) -> Draft:
        base, height = self._length(rng), 2 * self._length(rng)
        area = base * height // 2
        question = (
            f"A triangle has a base of {base} centimetres and a height of {height} centimetres. What is the area of "
            "the triangle in square centimetres?"
        )
        return Draft(question, str(area), f"{base} * {height} / 2 = {area}", "area")

    def _trapezium(self, rng: random.Random) -> Draft:
        a, b, height = self._length(rng), self._length(rng), 2 * self._length(rng)
        area = (a + b) * height // 2
        question = (
            f"The parallel sides of a trapezium are {a} metres and {b} metres long, and they are {height} metres "
            "apart. What is its area in square metres?"
        )
        return Draft(question, str(area), f"{a} + {b} = {a + b}\n{a + b} * {height} / 2 = {area}", "area")

    def _third_angle(self, rng: random.Random) -> Draft | None:
        a, b = rng.randint(15, 110), rng.randint(15, 110)
        if a + b > 165:
            return None
        question = f"Two angles of a triangle measure {a} degrees and {b} degrees. How many degrees is the third?"
        return Draft(question, str(180 - a - b), f"{a} + {b} = {a + b}\n180 - {a + b} = {180 - a - b}", "angles")

    def _isosceles(self, rng: random.Random) -> Draft:
        apex = 2 * rng.randint(5, 80)
        rest = 180 - apex
        question = (
            f"The two equal sides of an isosceles triangle form an angle of {apex} degrees. How many degrees does each "
            "of the other two angles measure?"
        )
        return Draft(question, str(rest // 2), f"180 - {apex} = {rest}\n{rest} / 2 = {rest // 2}", "angles")

    def _regular_polygon(self, rng: random.Random) -> Draft:
        sides = rng.choice([n for n in range(5, 181) if 360 % n == 0])
        outer = 360 // sides
        question = f"How many degrees is each interior angle of a regular polygon with {sides} sides?"
        return Draft(question, str(180 - outer), f"360 / {sides} = {outer}\n180 - {outer} = {180 - outer}", "angles")

    def _quadrilateral(self, rng: random.Random) -> Draft | None:
        a, b, c = (rng.randint(40, 140) for _ in range(3))
        fourth = 360 - a - b - c
        if not 20 <= fourth <= 160:
            return None
        question = f"Three angles of a quadrilateral measure {a}, {b} and {c} degrees. How many degrees is the fourth?"
        return Draft(question, str(fourth), f"{a} + {b} + {c} = {a + b + c}\n360 - {a + b + c} = {fourth}", "angles")

    def _right_triangle(self, rng: random.Random) -> tuple[int, int, int]:
        a, b, c = (side * factor for factor in [rng.randint(1, self.largest_number)] for side in rng.choice(TRIPLES))
        return (a, b, c) if rng.random() < 0.5 else (b, a, c)

    def _hypotenuse(self, rng: random.Random) -> Draft:
        a, b, c = self._right_triangle(rng)
        question = (
            f"The legs of a right triangle are {a} and {b} centimetres long. How many centimetres long is the "
            "hypotenuse?"
        )
        return Draft(question, str(c), f"{a}^2 + {b}^2 = {c * c}\nsqrt({c * c}) = {c}", "right triangles")

    def _leg(self, rng: random.Random) -> Draft:
        a, b, c = self._right_triangle(rng)
        question = (
            f"A straight cable {c} metres long is stretched from the top of a mast {a} metres high to the level "
            "ground. How many metres from the foot of the mast does it end?"
        )
        return Draft(question, str(b), f"{c}^2 - {a}^2 = {b * b}\nsqrt({b * b}) = {b}", "right triangles")

    def _rectangle_diagonal(self, rng: random.Random) -> Draft:
        a, b, c = self._right_triangle(rng)
        question = (
            f"One side of a rectangular field is {a} metres long, and its diagonal measures {c} metres. What is the "
            "area of the field in square metres?"
        )
        steps = f"{c}^2 - {a}^2 = {b * b}\nsqrt({b * b}) = {b}\n{a} * {b} = {a * b}"
        return Draft(question, str(a * b), steps, "right triangles")

    def _ring(self, rng: random.Random) -> Draft:
        inner = self._length(rng)
        outer = inner + rng.randint(1, self.largest_number)
        factor = outer * outer - inner * inner
        question = (
            f"Two circles with radii of {outer} and {inner} centimetres have the same centre. What is the area between "
            "them in square centimetres, as a multiple of \\pi?"
        )
        return Draft(
            question, f"{factor}\\pi", f"{outer}^2 - {inner}^2 = {factor}\npi * {factor} = {factor}*pi", "circles"
        )

    def _sector(self, rng: random.Random) -> Draft | None:
        radius, angle = 3 * self._length(rng), rng.choice((20, 30, 40, 45, 60, 72, 80, 100, 120, 135, 140, 150))
        area = Fraction(radius * radius * angle, 360)
        if area.denominator > 1:
            return None
        question = (
            f"A sector of a circle with a radius of {radius} centimetres has an angle of {angle} degrees. What is its "
            "area in square centimetres, as a multiple of \\pi?"
        )
        steps = f"{radius}^2 * {angle} / 360 = {area}\npi * {area} = {area}*pi"
        return Draft(question, f"{area}\\pi", steps, "circles")

    def _shadow(self, rng: random.Random) -> Draft | None:
        stick, shadow, factor = self._length(rng), self._length(rng, 3), rng.randint(4, 30)
        if stick == shadow or not stick <= 4 * shadow <= 16 * stick:
            return None
        tall, long = stick * factor, shadow * factor
        question = (
            f"A pole {stick} feet high casts a shadow {shadow} feet long. At the same time a tower casts a shadow "
            f"{long} feet long. How many feet high is the tower?"
        )
        return Draft(question, str(tall), f"{long} / {shadow} = {factor}\n{stick} * {factor} = {tall}", "similarity")

    def _vertices(self, rng: random.Random) -> Draft | None:
        half = self.largest_number // 2
        (a, b), (c, d), (e, f) = ((rng.randint(-half, half), rng.randint(-half, half)) for _ in range(3))
        double = (c - a) * (f - b) - (e - a) * (d - b)
        if not double:
            return None
        area = Fraction(abs(double), 2)
        question = f"What is the area of the triangle with the vertices ({a}, {b}), ({c}, {d}) and ({e}, {f})?"
        first, second = f"({c - a}) * ({f - b})", f"({e - a}) * ({d - b})"
        steps = f"{first} - {second} = {double}\n{abs(double)} / 2 = {area}"
        return Draft(question, str(area), steps, "coordinates")

    def _box_surface(self, rng: random.Random) -> Draft:
        (b, a), c = sorted((self._length(rng), self._length(rng))), self._length(rng)
        half = a * b + a * c + b * c
        question = (
            f"A closed box is {a} centimetres long, {b} centimetres wide and {c} centimetres high. What is its "
            "surface area in square centimetres?"
        )
        steps = f"{a} * {b} + {a} * {c} + {b} * {c} = {half}\n2 * {half} = {2 * half}"
        return Draft(question, str(2 * half), steps, "solids")

    def _cone(self, rng: random.Random) -> Draft:
        radius, height = self._length(rng), 3 * self._length(rng)
        factor = radius * radius * height // 3
        question = (
            f"A cone is {height} centimetres high, and its base has a radius of {radius} centimetres. What is its "
            "volume in cubic centimetres, as a multiple of \\pi?"
        )
        steps = f"{radius}^2 * {height} / 3 = {factor}\npi * {factor} = {factor}*pi"
        return Draft(question, f"{factor}\\pi", steps, "solids")
