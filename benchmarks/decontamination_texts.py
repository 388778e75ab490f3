"""What `decontamination.py` changes questions with: synonyms, and twelve questions with their translations."""
# ruff: noqa: E501 -- one sentence per line

SYNONYMS = {
    "how": "exactly how", "many": "numerous", "total": "overall amount", "altogether": "in all", "each": "every",
    "buys": "purchases", "bought": "purchased", "sells": "vends", "sold": "vended", "gives": "hands", "gave": "handed",
    "makes": "produces", "made": "produced", "uses": "employs", "has": "owns", "have": "own", "had": "owned",
    "find": "determine", "compute": "calculate", "evaluate": "work out", "value": "magnitude", "number": "count",
    "if": "suppose", "then": "afterwards", "what": "which", "day": "date", "week": "seven days", "year": "annum",
    "money": "cash", "dollars": "bucks", "cost": "price", "costs": "is priced at", "pays": "spends", "paid": "spent",
    "people": "persons", "friends": "companions", "children": "kids", "students": "pupils", "boys": "lads",
    "house": "home", "car": "vehicle", "store": "shop", "books": "volumes", "small": "little", "large": "big",
    "half": "fifty percent of", "twice": "two times", "more": "additional", "less": "fewer", "same": "identical",
    "simplify": "reduce", "express": "write", "answer": "result", "integer": "whole number", "integers": "whole numbers",
    "positive": "greater-than-zero", "real": "real-valued", "function": "mapping", "let": "take", "given": "provided",
    "point": "spot", "points": "spots", "line": "straight line", "circle": "round figure", "area": "surface",
    "length": "extent", "triangle": "three-sided figure", "square": "regular quadrilateral", "sum": "result of adding",
    "product": "result of multiplying", "smallest": "least", "largest": "greatest", "possible": "feasible",
    "distinct": "different", "probability": "chance", "random": "arbitrary", "chosen": "picked", "contains": "holds",
    "needs": "requires", "wants": "wishes", "goes": "travels", "walks": "strolls", "runs": "jogs", "takes": "requires",
    "and": "as well as", "but": "yet", "after": "following", "before": "prior to", "first": "initial", "last": "final",
    "per": "for every", "left": "remaining", "much": "great an amount", "such": "so", "equation": "equality",
}  # fmt: skip

# English, German, Spanish, Chinese.
TRANSLATED = [
    (
        "A gardener plants 14 rows of tulips with 9 bulbs in each row. If 17 bulbs do not grow, how many tulips bloom?",
        "Eine Gärtnerin pflanzt 14 Reihen Tulpen mit je 9 Zwiebeln. Wenn 17 Zwiebeln nicht wachsen, wie viele Tulpen blühen?",
        "Una jardinera planta 14 filas de tulipanes con 9 bulbos en cada fila. Si 17 bulbos no crecen, ¿cuántos tulipanes florecen?",
        "一位园丁种了14行郁金香，每行9个球茎。如果有17个球茎没有长出来，有多少朵郁金香开花？",
    ),
    (
        "A train leaves at 8:15 and travels 210 kilometres at a constant 84 kilometres per hour. At what time does it arrive?",
        "Ein Zug fährt um 8:15 Uhr ab und legt 210 Kilometer mit konstant 84 Kilometern pro Stunde zurück. Wann kommt er an?",
        "Un tren sale a las 8:15 y recorre 210 kilómetros a 84 kilómetros por hora constantes. ¿A qué hora llega?",
        "一列火车8:15出发，以每小时84公里的恒定速度行驶210公里。它几点到达？",
    ),
    (
        "The sum of two numbers is 61 and their difference is 13. What is the larger of the two numbers?",
        "Die Summe zweier Zahlen ist 61 und ihre Differenz ist 13. Welche ist die größere der beiden Zahlen?",
        "La suma de dos números es 61 y su diferencia es 13. ¿Cuál es el mayor de los dos números?",
        "两个数的和是61，差是13。这两个数中较大的是多少？",
    ),
    (
        "A rectangle is 5 centimetres longer than it is wide, and its perimeter is 46 centimetres. What is its area?",
        "Ein Rechteck ist 5 Zentimeter länger als breit, und sein Umfang beträgt 46 Zentimeter. Wie groß ist sein Flächeninhalt?",
        "Un rectángulo es 5 centímetros más largo que ancho y su perímetro es de 46 centímetros. ¿Cuál es su área?",
        "一个长方形的长比宽多5厘米，周长是46厘米。它的面积是多少？",
    ),
    (
        "Mira reads 24 pages on Monday and every following day 6 pages more. How many pages has she read after Friday?",
        "Mira liest am Montag 24 Seiten und an jedem folgenden Tag 6 Seiten mehr. Wie viele Seiten hat sie nach Freitag gelesen?",
        "Mira lee 24 páginas el lunes y cada día siguiente 6 páginas más. ¿Cuántas páginas ha leído después del viernes?",
        "米拉星期一读了24页，以后每天比前一天多读6页。到星期五读完后她一共读了多少页？",
    ),
    (
        "A bag holds 4 red, 5 blue and 3 green marbles. Two are drawn without replacement. What is the chance that both are blue?",
        "Ein Beutel enthält 4 rote, 5 blaue und 3 grüne Murmeln. Zwei werden ohne Zurücklegen gezogen. Wie wahrscheinlich sind beide blau?",
        "Una bolsa contiene 4 canicas rojas, 5 azules y 3 verdes. Se sacan dos sin reposición. ¿Qué probabilidad hay de que ambas sean azules?",
        "一个袋子里有4个红色、5个蓝色和3个绿色弹珠。不放回地取出两个。两个都是蓝色的概率是多少？",
    ),
    (
        "Find all real solutions of the equation $x^2 - 7x + 10 = 0$ and give the square of their difference.",
        "Bestimme alle reellen Lösungen der Gleichung $x^2 - 7x + 10 = 0$ und gib das Quadrat ihrer Differenz an.",
        "Halla todas las soluciones reales de la ecuación $x^2 - 7x + 10 = 0$ y da el cuadrado de su diferencia.",
        "求方程$x^2 - 7x + 10 = 0$的所有实数解，并给出它们之差的平方。",
    ),
    (
        "A jacket costs 80 euros. Its price is raised by 25 percent and then lowered by 20 percent. What does it cost now?",
        "Eine Jacke kostet 80 Euro. Ihr Preis wird um 25 Prozent erhöht und dann um 20 Prozent gesenkt. Was kostet sie jetzt?",
        "Una chaqueta cuesta 80 euros. Su precio sube un 25 por ciento y luego baja un 20 por ciento. ¿Cuánto cuesta ahora?",
        "一件夹克售价80欧元。价格先上涨25%，然后下降20%。现在卖多少钱？",
    ),
    (
        "Three pumps empty a pool in 8 hours. How many hours would two such pumps need for the same pool?",
        "Drei Pumpen leeren ein Becken in 8 Stunden. Wie viele Stunden brauchten zwei solche Pumpen für dasselbe Becken?",
        "Tres bombas vacían una piscina en 8 horas. ¿Cuántas horas necesitarían dos de esas bombas para la misma piscina?",
        "三台水泵8小时抽干一个水池。两台这样的水泵抽干同一个水池需要几小时？",
    ),
    (
        "In how many ways can 6 different books be placed on a shelf if two certain books must stand next to each other?",
        "Auf wie viele Arten kann man 6 verschiedene Bücher ins Regal stellen, wenn zwei bestimmte nebeneinander stehen müssen?",
        "¿De cuántas maneras se pueden colocar 6 libros distintos en un estante si dos libros determinados deben estar juntos?",
        "6本不同的书放在书架上，如果其中某两本必须相邻，有多少种放法？",
    ),
    (
        "What is the remainder when the sum of the first 50 positive odd integers is divided by 9?",
        "Welcher Rest bleibt, wenn man die Summe der ersten 50 positiven ungeraden Zahlen durch 9 teilt?",
        "¿Cuál es el resto al dividir entre 9 la suma de los primeros 50 enteros positivos impares?",
        "前50个正奇数之和除以9的余数是多少？",
    ),
    (
        "A farmer has hens and rabbits, 35 heads and 94 legs in all. How many rabbits does the farmer have?",
        "Ein Bauer hat Hühner und Kaninchen, zusammen 35 Köpfe und 94 Beine. Wie viele Kaninchen hat der Bauer?",
        "Un granjero tiene gallinas y conejos, en total 35 cabezas y 94 patas. ¿Cuántos conejos tiene el granjero?",
        "一个农民养了鸡和兔子，一共35个头、94条腿。农民有多少只兔子？",
    ),
]
