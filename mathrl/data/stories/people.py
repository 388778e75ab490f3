"""Names of the people in word problems, with their pronouns, by language."""

import random
from collections.abc import Mapping

_PRONOUNS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "en": (
        {"they": "she", "They": "She", "them": "her", "their": "her", "Their": "Her"},
        {"they": "he", "They": "He", "them": "him", "their": "his", "Their": "His"},
    ),
    "de": ({"they": "sie", "They": "Sie"}, {"they": "er", "They": "Er"}),
    "fr": ({"they": "elle", "They": "Elle"}, {"they": "il", "They": "Il"}),
    "es": ({"they": "ella", "They": "Ella"}, {"they": "él", "They": "Él"}),
}
_NAMES: Mapping[str, tuple[str, str]] = {
    "en": (
        "Amira Beatriz Chen Dana Elif Fatou Grace Hana Ines Julia Keiko Lena Maria Noor Olga Priya",
        "Ahmed Boris Carlos David Emeka Felix Goran Hugo Ivan Jamal Kenji Luca Mateo Nils Omar Pavel",
    ),
    "de": (
        "Anna Clara Ebru Greta Hanna Jule Lena Mia Nora Sophie",
        "Anton Ben Emil Finn Jonas Karim Lukas Max Paul Tim",
    ),
    "fr": (
        "Claire Camille Fatou Louise Jeanne Léa Manon Nadia Rose Zoé",
        "Thomas Bruno Gaël Victor Jules Karim Léo Marc Noé Paul",
    ),
    "es": (
        "Alba Carmen Elena Irene Lola Lucía Marta Nuria Pilar Sofía",
        "Andrés Bruno Diego Hugo Javier Leo Mario Pablo Raúl Tomás",
    ),
}


def people(rng: random.Random, language: str) -> dict[str, str]:
    """The names of three different people, and the pronouns of the first."""
    side = rng.randrange(2)
    name = rng.choice(_NAMES[language][side].split())
    others = [other for names in _NAMES[language] for other in names.split() if other != name]
    friend, other = rng.sample(others, 2)
    return {"name": name, "friend": friend, "other": other, **_PRONOUNS[language][side]}
