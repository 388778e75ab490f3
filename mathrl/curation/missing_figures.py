r"""Whether a question refers to a figure or table that its text does not have, and whether the text does without it.

Many problems say "in the diagram" and then describe all of it. Others ask for what only the figure shows: the shaded
region, the graph, the grid. Which of the two a problem is can be told from its words in most cases, not in all; the
quality gate has a rule for each.
"""

import re

_PICTURE = (
    "(?:figures?|figs?\\.|diagrams?|drawings?|illustrations?|sketch(?:es)?|pictures?|images?|photo(?:graph)?s?"
    "|screenshots?)"
)
_PLOT = (
    r"(?:(?:[\w-]+[\s-]+)?(?:charts?|graphs?|plots?)|histograms?|pictographs?|maps?|tables?|grids?|number\s+lines?"
    r"|timelines?|nets?)"
)
_SHAPE = (
    r"(?:(?:tri|rect)angles?|squares?|circles?|\w+gons?|\w*lateral|parallelograms?|trapezoids?|regions?|shapes?|solids?"
    r"|cubes?|pyramids?|prisms?|cones?|cylinders?|\w*boards?|curves?|parabolas?|ellipses?|angles?|segments?|arrays?"
    r"|lattices?|mazes?|paths?|stars?|wheels?|\w*wheels?|pieces?|structures?|towers?|designs?|pentominoes|tracks?|gears?"
    r"|positions?|rings?|boxe?s?|clocks?|spinners?|dials?)"
)
_SEEN = "(?:shown|pictured|depicted|illustrated|drawn|displayed|seen|graphed|plotted|sketched)"
_SHOWS = (
    "(?:shows?|depicts?|illustrates?|displays?|indicates?|gives?|lists?|records?|summari[sz]es?|represents?|describes?"
    "|presents?)"
)
_WHERE = r"(?:below|above|here|(?:at|on|to)\s+(?:the\s+)?(?:left|right)|at\s+hand)"
_END = r"(?=\s*(?:[.,;:)?!]|$))"
_OR_MORE = rf"(?=\s*(?:[.,;:)?!]|$|(?:{_WHERE}|{_SEEN}|to|and|for|provided|again)\b))"
_NEAR = r"(?:following|adjacent|adjoining|given|accompanying|attached|provided|above|below)"
_THE = r"(?:the|this|these|our)\s+(?:[\w-]+\s+){0,2}?"
_REFERENCES = (
    # in the diagram, from this picture, on the map below
    rf"\b(?:in|from|by)\s+{_THE}(?:figures?|diagrams?|illustrations?)\b(?!\s+(?:of|formed|made)\b)",
    rf"\b(?:in|from|on|by|of)\s+{_THE}(?:{_PICTURE}|charts?|histograms?)\s*(?:,|\s(?:we|you\s+can)\b)",
    rf"\b(?:in|from|on|by|of)\s+{_THE}(?:{_PICTURE}|{_PLOT})\s+(?:{_WHERE}|{_SEEN}|provided)\b",
    rf"\b{_SEEN}\s+(?:in|on|by)\s+{_THE}(?:{_PICTURE}|{_PLOT})\b",
    rf"\b(?:given|listed|recorded|marked|labell?ed|indicated|shaded|as)\s+(?:in|on|by)\s+{_THE}(?:{_PICTURE}|{_PLOT})\b"
    r"(?!\s+of\b)",
    r"\b(?:from|in)\s+the\s+(?:[\w-]+\s+){0,2}?(?:chart|histogram)\b(?!\s+of\b)",
    # refer to the diagram, use this table, study the graph
    r"\b(?:refer(?:ring)?\s+to|based\s+on|according\s+to|look(?:ing)?(?:\s+\w+ly)?\s+at|use|using|see|study|examine|observe"
    r"|consider|consult|inspect|read|view|copy|complete|fill\s+in|with\s+the\s+help\s+of)\s+(?:the|this|these|your)\s+"
    rf"(?:[\w-]+\s+){{0,2}}?(?:{_PICTURE}|{_PLOT}){_OR_MORE}",
    rf"[(\[]\s*(?:please\s+)?(?:see|refer\s+to|cf\.?)\s+(?:the\s+)?(?:\w+\s+)?{_PICTURE}",
    rf"\b(?:use|using|see|study)\b[^.?!]{{0,30}}\b(?:in|on|from)\s+(?:the|this)\s+(?:{_PICTURE}|{_PLOT}){_END}",
    # the chart shows, the table of prices below gives
    rf"\b(?:the|this|that|these|our)\s+(?:[\w-]+\s+){{0,2}}?(?:{_PICTURE}|{_PLOT})\b(?:,\s+(?:which|not)\b[^.?!]{{0,60}},)?"
    rf"(?:\s+{_WHERE}|\s+of\s+[^.?!,]{{1,40}}?)?\s+{_SHOWS}\b",
    # the grid below, triangle $JKL$ below, the graph is shown
    rf"\b(?:{_PICTURE}|{_PLOT}|{_SHAPE})\s+(?:\$[^$]{{1,20}}\$\s+)?(?:is\s+|are\s+)?(?:{_SEEN}\s+)?(?:below|above|here"
    r"|(?:at|on)\s+(?:the\s+)?(?:left|right))"
    r"(?=\s*(?:[.,;:)?!]|$|(?:has|have|is|are|was|were|can|will|consists?|contains?|into)\b))",
    rf"\b(?:{_PICTURE}|{_PLOT})\s+(?:of\s+[^.?!]{{1,60}}?\s+)?(?:is|are)\s+(?:as\s+)?(?:shown|pictured|displayed|depicted"
    rf"|given)(?:{_END}|\s+{_WHERE})",
    rf"\b(?:{_PICTURE}|graphs?|maps?|charts?|tables?|grids?)\s+{_SEEN}\b",
    r"\b(?:this|these)\s+(?:\w+\s+)?(?:diagrams?|pictures?|images?|drawings?|sketch(?:es)?|illustrations?|charts?)"
    rf"(?:{_END}|(?=\s+(?:is|are|has|have|shows?)\b))",
    rf"\bthe\s+{_NEAR}\s+(?:[\w-]+\s+)?(?:{_PICTURE}|{_PLOT})\b(?!\s+of\b)",
    # the circle shown, two squares pictured
    rf"\b{_SHAPE}\s+(?:shown|pictured|depicted)(?:{_END}|(?=\s+(?:{_WHERE}|is|are|has|have|was|in)\b))",
    rf"\b{_SEEN}\s+(?!above){_WHERE}\b(?![^.?!]*:)(?!.*(?:\$\$|\\\[|\\begin|\\bullet|\n\s*\S|\d\$?,\s))",
    rf"(?:^|[.?!]\s+|\n)(?:{_SEEN}\s+)?(?:below|above)\s+(?:is|are)\s+(?:an?|the|part|two|three|four|several)\b(?![^.?!]*:)",
    # as shown, as the diagram indicates
    r"\bas\s+(?:is\s+|are\s+)?(?:shown|pictured|depicted|illustrated|drawn|seen|marked|indicated)"
    rf"(?:{_END}|\s+(?:{_WHERE}|in\s+(?:figs?\.|figure\s)))(?!\s*:|[^.?!]*[:,]?\s*(?:\$\$|\\\[))",
    rf"\bas\s+(?:the|this|our)\s+(?:\w+\s+)?(?:{_PICTURE}|{_PLOT})\s+{_SHOWS}",
    r"\b(?-i:Figures?|Fig\.|Figs\.|Diagram|Chart)\s+\(?[1-9]\d?\b(?!\s*[-+*/=^×])",
    r"\b(?:in|see|to|from|of|and)\s+figs?\.\s*[1-9]",
    # [image], (diagram not shown), not drawn to scale
    rf"[\[(<]\s*(?:insert\s+|the\s+)*(?:{_PICTURE}|{_PLOT})(?:\s+[\w\s]{{1,30}})?\s*[\])>]",
    r"\bnot\s+(?:necessarily\s+)?(?:drawn\s+)?to\s+scale\b",
    # the angle marked x
    r"\b(?:measure|size|value|length|degrees?|area)\s+(?:of|in)\s+(?:the\s+)?(?:angle|side|arc|segment|edge|region|part)s?\s+"
    r"(?:marked|labell?ed|indicated)\b",
    r"如(?:右|左|下|上)?图|(?<![地])[下右左上附]图|(?<!地)图中|图所示|看图|统计图|示意图|图\s*[1-9１-９]"
    r"|[边面]的图(?![书案像])|[下右左上]表|如表|阴影",
)
_REFERS = re.compile("|".join(_REFERENCES), re.IGNORECASE | re.DOTALL)
_SHADE = r"(?:(?:un)?shaded|gr[ae]y|colou?red|hatched)"
_SHADED = re.compile(
    rf"\b{_SHADE}\s+(?:area|part|portion|section|sector|region|{_SHAPE})s?\b"
    r"(?!\s+(?:that|which|created|formed|between|inside|outside|common|within))"
    rf"|\b(?:fraction|percent(?:age)?|part|portion)\s+of\s+[^.?!]{{1,40}}\s(?:is|are)\s+{_SHADE}\s*\?",
    re.IGNORECASE,
)
_ASKS_FOR_SHADED = re.compile(
    r"\b(?:area|perimeter|fraction|percent|probability|ratio|how\s+(?:large|big))\b", re.IGNORECASE
)
_SAYS_WHAT_IS_SHADED = re.compile(
    rf"\b(?:is|are|was|were|be|been|being)\s+(?:then\s+)?{_SHADE}\b(?!\s*\?)|\bshad(?:es?|ing)\b|\bshaded\s+(?:in|with)\b",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(
    r"\b(?:figure|diagram|picture|image|illustration|drawing|examples?)\b[^.?!]*"
    r"\b(?:examples?|the\s+case|illustrates\s+the|first\s+(?:few|two|three|four)|when\s+\$|after\s+(?:step|stage))"
    r"|\bexamples?\s+(?:\w+\s+){0,4}(?:shown|displayed|pictured|below)",
    re.IGNORECASE,
)
_DRAWN = re.compile(
    r"\[/?asy\]|\\begin\{(?:asy|tikzpicture|tabular|array|picture|table|\w*matrix)|\\bullet.*\\bullet|\bdraw\s*\(|\n\s*\|.*\||<t[dr]\b|\t.*\t|\d\|\d.*\d\|\d"
)
# Words of which a text that a pattern matches has one: looking for them first takes a tenth of the time.
_WORDS = ("figure", "fig", "diagram", "pictur", "image", "drawing", "illustrat", "graph", "map", "chart", "table",
          "grid", "histogram", "plot", "shown", "depict", "seen", "display", "sketch", "photo", "screenshot",
          "number line", "below", "above", "timeline", "clock", "spinner", "drawn", "to scale", "marked", "label",
          "indicated", "图", "表", "阴影")  # fmt: skip


# What only a figure shows.
_SHOWN_ALONE = re.compile(
    rf"\b(?:graphs?\b(?!\s+paper)|charts?|histograms?|(?:dot|box|scatter)\s*plots?|number\s+lines?|nets?|maze|lattice)\b"
    rf"|\b(?:pattern|grid|table|array|map)s?\s+(?:in\s+the|{_SEEN}|below|above|continues|(?:is|were)\s+continued)\b"
    r"|(?<!in )(?<!see )(?<!on )\b(?:the|this|following|of)\s+(?:[\w-]+\s+)?"
    r"(?:figures?|shapes?|\w*-(?:sided|shaped)\s+\w+)\s+(?:shown\b(?!\s+in)|(?:below\s+)?(?:was|has|can|consists))\b"
    rf"|\b(?:in|of)\s+(?:the|this)\s+(?:following|entire|whole|large|star[\s-]shaped)?\s*(?:figures?|diagrams?|pictures?)\s*\?"
    rf"|\b(?:as\s+)?(?:indicated|marked|labell?ed|dimensions?\s+shown)\s+in\s+the\b|\bdashed\b|\bdotted\b|\bvisible\b|\bview\b"
    rf"|\b(?:joined|glued|fastened|stacked|arranged|attached|connected|formed|created|divided|made\s+up|put\s+together|composed)\b[^.?!]{{0,50}}\bas\s+shown\b"
    rf"|\b{_SHAPE}\s+(?:shown|pictured|depicted)\b|\bshown\s+(?:{_SHAPE}|chord)\b"
    r"|\bhow\s+many\s+[^.?!]{1,60}\b(?:in|shown|pictured)\b[^.?!]{0,20}\b(?:figure|diagram|picture|here|below|shown|pictured)"
    r"|\bcircles\s+of\s+the\s+(?:\w+\s+)?(?:diagram|figure)|(?:统计图|[下右]表)",
    re.IGNORECASE,
)
# What a text says of a figure: lengths, angles, relations, kinds of shapes.
_FACT = re.compile(
    r"=|\\parallel|\\perp|\\cong|\\sim\b|\d\s*\^?\s*\\?\{?\\circ|°"
    r"|\b(?:midpoints?|bisect\w*|trisect\w*|perpendicular|parallel|tangent|inscribed|circumscribed|collinear|concentric"
    r"|congruent|equilateral|equiangular|isosceles|regular|right\s+(?:angle|triangle|circular)|diameters?|radi(?:us|i)|centers?|centered"
    r"|intersects?|intersection|medians?|altitudes?|folded|rotated|rectangle|square|trapezoid|parallelogram|rhombus|semicircles?"
    r"|sides?\s+(?:length\s+)?(?:of\s+)?(?:length|\$?\d)|lengths?|perimeter|equal(?:ly)?|twice|divided|chord|diagonals?|vertex|vertices)\b"
    r"|如图|中点|平行|垂直|正方|相切|半径|直径|焦点|抛物线|椭圆|棱长|交于|面积为|等腰|内切|外接|重心|直角|坐标|延长线|面积",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(?<![A-Za-z\\])[A-Z]{2,}(?:_\w)?(?![A-Za-z])")  # $ABCD$, segment $PQ$
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_FORM = re.compile(
    r"(?:the\s+(?:original\s+)?answer\b|if\s+the\s+(?:answer|area|radius)\s+is|provide\s+your|please\s+(?:give|find|provide|calculate)"
    r"|express\s+your|can\s+be\s+(?:written|expressed)|原始|答案|请给出).*",
    re.IGNORECASE | re.DOTALL,
)
ENOUGH = 4  # facts with which a text mostly does without its figure; three names or three numbers count as one


def missing_figure(question: str) -> bool:
    """Whether the question refers to a figure or table, and has neither drawing code nor a table.

    A figure that is an example of what the text says is not missed.

    >>> missing_figure("The figure shows the case $n=2$."), missing_figure("Find the area of the shaded region.")
    (False, True)
    """
    if _DRAWN.search(question):
        return False
    lower = question.lower()
    if any(word in lower for word in _WORDS) and _REFERS.search(question) is not None:
        return _EXAMPLE.search(question) is None
    return _lacks_shading(question)


def describes_its_figure(question: str) -> bool:
    """Whether the text of a question whose figure is missing says by itself what the figure shows.

    >>> describes_its_figure("In the diagram, $AB=AC=5$ and $D$ is the midpoint of side $BC=6$. How long is $AD$?")
    True
    >>> describes_its_figure("The graph shows the sales. How many were sold in May?")
    False
    """
    text = _FORM.sub("", question)
    if _lacks_shading(text) or _SHOWN_ALONE.search(text):
        return False
    named, numbers = len(set(_NAMED.findall(text))), len(_NUMBER.findall(text))
    return len(_FACT.findall(text)) + named // 3 + numbers // 3 >= ENOUGH


def _lacks_shading(question: str) -> bool:
    asks = _SHADED.search(question) is not None and _ASKS_FOR_SHADED.search(question) is not None
    return asks and _SAYS_WHAT_IS_SHADED.search(question) is None
