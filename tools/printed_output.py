"""Compares the output that a page prints with that of its commands, and makes a page's output anew.

Both are compared as words, because a terminal wraps lines at its width and a page at its own. The
word `...` on a page stands for any words. With measured output, times, counts and digests are held
against each other by their form alone, except that one digest of a page is one digest of the runs.
"""
import difflib
import re

ELISION = "..."
TIME = re.compile(r"# (?:ns|us|ms|s|m|h)\b")
BYTES = re.compile(r"# (?:B|[KMGT]iB)\b")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
DIGEST = re.compile(r"\b[0-9a-f]{32}\b")
RANK = r"(?:\[\d+\] )?"


def without_transcript(text):
    """The commands of a transcript, its lines `$ sluice ...`, and the other lines."""
    lines = text.split("\n")
    return ([line[2:] for line in lines if line.startswith("$ ")],
            [line for line in lines if not line.startswith("$ ")])


def words_of(text, measured):
    """The words, without the mark of a rank on continued lines. Lines of a unit may be wrapped."""
    text = re.sub(rf"^({RANK})\s{{4,}}", " ", text, flags=re.MULTILINE)
    text = " ".join(text.split())
    if measured:
        text = NUMBER.sub("#", DIGEST.sub("<digest>", text))
        text = BYTES.sub("# bytes", TIME.sub("# time", text))
    return text.split()


def find(words, among, begin, exactly_there):
    """Where `words` begin in `among`, at or after `begin`; None where they do not."""
    last = begin if exactly_there else len(among) - len(words)
    return next((at for at in range(begin, last + 1) if among[at:at + len(words)] == words), None)


def longest_beginning(words, among, begin, exactly_there):
    """(How many of `words` stand in `among` in a row, where these begin), at the best place."""
    def agreeing(at):
        return next((count for count, pair in enumerate(zip(words, among[at:]))
                     if pair[0] != pair[1]), min(len(words), len(among) - at))
    places = [begin] if exactly_there else range(begin, max(len(among), begin + 1))
    return max(((agreeing(at), at) for at in places), key=lambda found: found[0])


def difference(page, printed, measured=False, digests=None):
    """The first difference in words, or None. `digests` holds those of the page, with the runs'."""
    want, have = words_of(page, measured), words_of(printed, measured)
    parts = [[]]
    for word in want:
        if word == ELISION:
            parts.append([])
        else:
            parts[-1].append(word)
    at = 0
    for number, part in enumerate(parts):
        if number and number == len(parts) - 1 and part:
            # The last part ends the output.
            begin, there = max(at, len(have) - len(part)), True
        else:
            begin, there = at, number == 0
        found = find(part, have, begin, there)
        if found is None:
            count, place = longest_beginning(part, have, begin, there)
            return (f"the page has '{' '.join(part[max(0, count - 4):count + 6])}', the output "
                    f"'{' '.join(have[max(0, place + count - 4):place + count + 6])}'")
        at = found + len(part)
    if len(parts) == 1 and at < len(have):
        return f"the output goes on with '{' '.join(have[at:at + 8])}'"
    return digest_difference(page, printed, {} if digests is None else digests) if measured else None


def digest_difference(page, printed, digests):
    for old, new in zip(DIGEST.findall(page), DIGEST.findall(printed)):
        if digests.setdefault(old, new) != new:
            return f"the page has {old} twice, the runs {digests[old]} and {new}"
        if list(digests.values()).count(new) > 1:
            return f"the runs have {new} where the page has several digests"
    return None


# ---- a page's output made anew

def logical_lines(lines):
    """[(label, physical lines)]: a line that is indented continues the one before."""
    found = []
    for line in lines:
        if found and found[-1][0] != ELISION and re.match(rf"{RANK}\s{{4,}}", line):
            found[-1][1].append(line)
        else:
            bare = line.strip()
            found.append((bare if bare == ELISION else re.split(r"\s{2,}", bare)[0], [line]))
    return found


def shortened(old, new):
    """`new` as long as `old`, if that one ends in an elision."""
    old_words = " ".join(old).split()
    if old_words[-1] != ELISION:
        return new
    line = new[0] + " " + " ".join(" ".join(new[1:]).split())
    end = [match.end() for match in re.finditer(r"\S+", line)]
    return [line[:end[min(len(old_words) - 1, len(end)) - 1]] + " " + ELISION]


def made_anew(page, printed):
    """The page's lines with the output's words. Elided lines and ends of lines stay so."""
    old, new = logical_lines(page), logical_lines([line for line in printed if line.strip()])
    labels = [label for label, _ in old], [label for label, _ in new]
    result, elided = [], False
    matcher = difflib.SequenceMatcher(None, *labels, autojunk=False)
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        if kind == "equal":
            for (_, before), (_, after) in zip(old[a:a_end], new[b:b_end]):
                result += shortened(before, after)
            continue
        elided = any(label == ELISION for label, _ in old[a:a_end])
        if elided:
            result.append(ELISION)
        else:
            result += [line for _, lines in new[b:b_end] for line in lines]
    return result
