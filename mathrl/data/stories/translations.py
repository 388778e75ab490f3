"""Structures told in German, French and Spanish: the question and the distractor of each, with the same numbers."""

from collections.abc import Mapping

Told = Mapping[str, tuple[str, str]]

GERMAN: Told = {
    "rolls": (
        "Eine Bäckerin formt {a} Brötchen pro Stunde. Wie viele Brötchen sind nach {b} Stunden fertig?",
        "Die Bäckerei wurde vor {z} Jahren eröffnet.",
    ),
    "more_than": (
        "{name} hat {a} Murmeln, das sind {b} mehr als {friend} hat. Wie viele Murmeln hat {friend}?",
        "{friend} sammelt sie seit {z} Jahren.",
    ),
    "ribbon": (
        "{name} schneidet ein Band von {a} Metern in Stücke von {b} Zentimetern. Wie viele Stücke entstehen?",
        "Das Band ist {z} Millimeter breit.",
    ),
    "change": (
        "{name} kauft {a} Hefte zu je {b} Euro und bezahlt mit einem {c}-Euro-Schein. Wie viele Euro bekommt {they} "
        "zurück?",
        "An der Kasse wartet {they} {z} Minuten.",
    ),
    "meeting": (
        "Zwei Radfahrer starten gleichzeitig in zwei Orten, die {a} Kilometer voneinander entfernt sind, und fahren "
        "aufeinander zu. Der eine fährt {b} km/h, der andere {c} km/h. Nach wie vielen Stunden treffen sie sich?",
        "Jeder hat {z} Ersatzschläuche dabei.",
    ),
    "saving": (
        "{name} möchte ein Fahrrad für {a} Euro kaufen. {They} hat schon {b} Euro gespart und legt jede Woche {c} Euro "
        "zurück. In wie vielen Wochen reicht das Geld?",
        "Mit dem Bus sind es {z} Minuten bis zum Laden.",
    ),
    "fence": (
        "Ein rechteckiger Garten ist {a} Meter lang und {b} Meter breit. Ein Zaun rundherum kostet {c} Euro pro "
        "Meter. Wie viele Euro kostet der Zaun?",
        "Darin wachsen {z} Obstbäume.",
    ),
    "tickets": (
        "Eine Familie kauft {a} Karten für Erwachsene zu je {b} Euro und {c} Kinderkarten zu je {d} Euro. Wie viele "
        "Euro kosten die Karten zusammen?",
        "Die Vorstellung dauert {z} Minuten.",
    ),
    "sale": (
        "Eine Jacke kostet {a} Euro. Im Schlussverkauf wird sie um {b} Prozent billiger. Wie viele Euro kostet sie "
        "dann?",
        "Der Laden hat täglich {z} Stunden geöffnet.",
    ),
    "leaking_tank": (
        "In einem Tank sind {a} Liter Wasser. Jede Minute fließen {b} Liter hinein und {c} Liter heraus. Wie viele "
        "Liter sind nach {d} Minuten im Tank?",
        "Er steht auf {z} Meter hohen Beinen.",
    ),
    "bus_stops": (
        "Ein Bus fährt mit {a} Fahrgästen los. An der ersten Haltestelle steigen {b} aus und {c} ein, an der zweiten "
        "steigen {d} aus und {e} ein. Wie viele Fahrgäste sind dann im Bus?",
        "Der Fahrer arbeitet seit {z} Jahren.",
    ),
    "concert_hall": (
        "Von den {a} Gästen eines Konzerts sind {b} Prozent Schüler, die nichts bezahlen. Alle anderen zahlen {c} "
        "Euro. Wie viele Euro nimmt das Konzert ein?",
        "Die Band spielt {z} Lieder.",
    ),
    "courier": (
        "Eine Kurierfahrerin stellt jeden Vormittag {a} und jeden Nachmittag {b} Pakete zu und bekommt {c} Euro für "
        "jedes. Für Benzin gibt sie am Tag {d} Euro aus. Wie viele Euro bleiben ihr nach {e} Tagen?",
        "In ihren Wagen passen {z} Pakete.",
    ),
    "average_speed": (
        "Ein Reisebus fährt {a} Stunden mit {b} km/h und danach {c} Stunden mit {d} km/h. Wie hoch ist seine "
        "Durchschnittsgeschwindigkeit auf der ganzen Fahrt, in km/h?",
        "Er hat {z} Sitzplätze.",
    ),
    "bake_sale": (
        "Eine Klasse verkauft {a} Kuchen zu je {b} Euro und {c} Becher Saft zu je {d} Euro. Die Zutaten kosten {e} "
        "Euro. Der Rest wird gleichmäßig auf {f} Vereine verteilt. Wie viele Euro bekommt jeder Verein?",
        "In der Klasse sind {z} Kinder.",
    ),
}

FRENCH: Told = {
    "rolls": (
        "Une boulangère façonne {a} petits pains par heure. Combien de petits pains sont prêts au bout de {b} heures ?",
        "La boulangerie a ouvert il y a {z} ans.",
    ),
    "more_than": (
        "{name} a {a} billes, soit {b} de plus que {friend}. Combien de billes a {friend} ?",
        "Les deux enfants se connaissent depuis {z} ans.",
    ),
    "ribbon": (
        "{name} coupe un ruban de {a} mètres en morceaux de {b} centimètres. Combien de morceaux obtient-on ?",
        "Le ruban a une largeur de {z} millimètres.",
    ),
    "change": (
        "{name} achète {a} cahiers à {b} euros pièce et paie avec un billet de {c} euros. Combien d'euros lui "
        "rend-on ?",
        "L'attente à la caisse dure {z} minutes.",
    ),
    "meeting": (
        "Deux cyclistes partent en même temps de deux villes distantes de {a} kilomètres et roulent l'un vers "
        "l'autre. L'un roule à {b} km/h, l'autre à {c} km/h. Au bout de combien d'heures se rencontrent-ils ?",
        "Chacun emporte {z} chambres à air.",
    ),
    "saving": (
        "{name} veut acheter un vélo à {a} euros. {They} a déjà économisé {b} euros et met de côté {c} euros par "
        "semaine. Dans combien de semaines aura-t-{they} assez d'argent ?",
        "Le magasin est à {z} minutes en bus.",
    ),
    "fence": (
        "Un jardin rectangulaire mesure {a} mètres de long et {b} mètres de large. Une clôture en fait le tour et "
        "coûte {c} euros le mètre. Combien d'euros coûte la clôture ?",
        "On y trouve {z} arbres fruitiers.",
    ),
    "tickets": (
        "Une famille achète {a} billets pour adultes à {b} euros et {c} billets pour enfants à {d} euros. Combien "
        "d'euros coûtent les billets en tout ?",
        "Le spectacle dure {z} minutes.",
    ),
    "sale": (
        "Une veste coûte {a} euros. Pendant les soldes, son prix baisse de {b} pour cent. Combien d'euros "
        "coûte-t-elle alors ?",
        "Le magasin est ouvert {z} heures par jour.",
    ),
    "leaking_tank": (
        "Une cuve contient {a} litres d'eau. Chaque minute, {b} litres y entrent et {c} litres s'en échappent. "
        "Combien de litres contient-elle au bout de {d} minutes ?",
        "Elle repose sur des pieds de {z} mètres.",
    ),
    "bus_stops": (
        "Un bus part avec {a} passagers. Au premier arrêt, {b} descendent et {c} montent ; au deuxième, {d} "
        "descendent et {e} montent. Combien de passagers y a-t-il alors dans le bus ?",
        "Le conducteur travaille depuis {z} ans.",
    ),
    "concert_hall": (
        "Sur les {a} spectateurs d'un concert, {b} pour cent sont des étudiants, qui entrent gratuitement. Les "
        "autres paient {c} euros. Combien d'euros le concert rapporte-t-il ?",
        "Le groupe joue {z} chansons.",
    ),
    "courier": (
        "Une coursière livre {a} colis chaque matin et {b} chaque après-midi, et reçoit {c} euros par colis. Elle "
        "dépense {d} euros d'essence par jour. Combien d'euros lui reste-t-il au bout de {e} jours ?",
        "Sa camionnette peut contenir {z} colis.",
    ),
    "average_speed": (
        "Un car roule {a} heures à {b} km/h, puis {c} heures à {d} km/h. Quelle est sa vitesse moyenne sur tout le "
        "trajet, en km/h ?",
        "Il compte {z} places assises.",
    ),
    "bake_sale": (
        "Une classe vend {a} gâteaux à {b} euros et {c} verres de jus à {d} euros. Les ingrédients coûtent {e} "
        "euros. Le reste est partagé à parts égales entre {f} associations. Combien d'euros reçoit chaque "
        "association ?",
        "Il y a {z} élèves dans la classe.",
    ),
}

SPANISH: Told = {
    "rolls": (
        "Una panadera da forma a {a} panecillos por hora. ¿Cuántos panecillos están listos al cabo de {b} horas?",
        "La panadería abrió hace {z} años.",
    ),
    "more_than": (
        "{name} tiene {a} canicas, es decir, {b} más que {friend}. ¿Cuántas canicas tiene {friend}?",
        "{friend} las colecciona desde hace {z} años.",
    ),
    "ribbon": (
        "{name} corta una cinta de {a} metros en trozos de {b} centímetros. ¿Cuántos trozos salen?",
        "La cinta tiene {z} milímetros de ancho.",
    ),
    "change": (
        "{name} compra {a} cuadernos a {b} euros cada uno y paga con un billete de {c} euros. ¿Cuántos euros le "
        "devuelven?",
        "En la caja espera {z} minutos.",
    ),
    "meeting": (
        "Dos ciclistas salen a la vez de dos pueblos que están a {a} kilómetros y van el uno hacia el otro. Uno va a "
        "{b} km/h y el otro a {c} km/h. ¿Al cabo de cuántas horas se encuentran?",
        "Cada uno lleva {z} cámaras de repuesto.",
    ),
    "saving": (
        "{name} quiere comprar una bicicleta de {a} euros. Ya ha ahorrado {b} euros y guarda {c} euros cada semana. "
        "¿Dentro de cuántas semanas tendrá suficiente dinero?",
        "La tienda está a {z} minutos en autobús.",
    ),
    "fence": (
        "Un jardín rectangular mide {a} metros de largo y {b} metros de ancho. Una valla lo rodea por completo y "
        "cuesta {c} euros por metro. ¿Cuántos euros cuesta la valla?",
        "En él crecen {z} árboles frutales.",
    ),
    "tickets": (
        "Una familia compra {a} entradas de adulto a {b} euros y {c} entradas infantiles a {d} euros. ¿Cuántos euros "
        "cuestan todas las entradas?",
        "La función dura {z} minutos.",
    ),
    "sale": (
        "Una chaqueta cuesta {a} euros. En las rebajas su precio baja un {b} por ciento. ¿Cuántos euros cuesta "
        "entonces?",
        "La tienda abre {z} horas al día.",
    ),
    "leaking_tank": (
        "Un depósito contiene {a} litros de agua. Cada minuto entran {b} litros y se pierden {c} litros. ¿Cuántos "
        "litros hay en el depósito al cabo de {d} minutos?",
        "Se apoya en unas patas de {z} metros.",
    ),
    "bus_stops": (
        "Un autobús sale con {a} pasajeros. En la primera parada bajan {b} y suben {c}, y en la segunda bajan {d} y "
        "suben {e}. ¿Cuántos pasajeros hay entonces en el autobús?",
        "El conductor trabaja desde hace {z} años.",
    ),
    "concert_hall": (
        "De los {a} asistentes a un concierto, el {b} por ciento son estudiantes, que entran gratis. Los demás pagan "
        "{c} euros. ¿Cuántos euros se recaudan?",
        "El grupo toca {z} canciones.",
    ),
    "courier": (
        "Una repartidora entrega {a} paquetes cada mañana y {b} cada tarde, y cobra {c} euros por paquete. Gasta {d} "
        "euros al día en gasolina. ¿Cuántos euros le quedan al cabo de {e} días?",
        "En su furgoneta caben {z} paquetes.",
    ),
    "average_speed": (
        "Un autocar circula {a} horas a {b} km/h y después {c} horas a {d} km/h. ¿Cuál es su velocidad media en todo "
        "el viaje, en km/h?",
        "Tiene {z} plazas.",
    ),
    "bake_sale": (
        "Una clase vende {a} tartas a {b} euros y {c} vasos de zumo a {d} euros. Los ingredientes cuestan {e} euros. "
        "El resto se reparte a partes iguales entre {f} asociaciones. ¿Cuántos euros recibe cada asociación?",
        "En la clase hay {z} alumnos.",
    ),
}

TRANSLATIONS: Mapping[str, Told] = {"de": GERMAN, "fr": FRENCH, "es": SPANISH}
