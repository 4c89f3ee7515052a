"""Whether a feedback says more than a verdict, as far as its words tell."""

import itertools
import re
from collections.abc import Iterable

__all__ = ["says_something"]

# Words of verdicts in English and Portuguese, and those that say nothing beside them.
_OF_VERDICTS = re.compile(
    "a|again|ainda|all|almost|an|and|another|answer|answers|any|are|as|at|bad|be|but|certa|certo|close|"
    "completely|correct|correta|correto|da|das|de|do|does|dos|e|else|em|errada|errado|erro|error|está|"
    "expected|fail|failed|failure|false|favor|feedback|foi|for|gave|given|gold|good|got|have|i|in|"
    "incorrect|incorreta|incorreto|invalid|inválida|inválido|is|isn|isso|isto|it|its|just|match|"
    "matches|mean|metric|mistake|muito|na|nearly|no|nope|not|novamente|não|o|of|one|or|os|output|"
    "outputs|para|please|poor|por|predicted|prediction|predictions|que|quite|really|response|responses|"
    "resposta|result|resultado|results|right|ruim|same|saída|score|ser|so|something|tente|text|that|"
    "the|there|this|to|totally|true|try|um|uma|very|was|were|wrong|you|your|é"
)

# The same in Chinese, Japanese and Korean, which are written without spaces or with endings.
_PARTS_OF_VERDICTS = re.compile(
    "不正确|不正解|正确|错误|不对|答案|回答|输出|格式|结果|无效|失败|重试|再试一次|这个|这是|非常|请|的|了|是|不|很"
    "|間違っています|間違い|正しくありません|誤り|出力|答え|形式|フォーマット|もう一度|してください|です|が|は|の"
    "|틀렸습니다|틀렸어요|잘못되었습니다|잘못된|잘못|올바르지 ?않습니다|오답|정답|아닙니다"
    "|출력|답변|형식|입니다|다시|시도하세요|[이가은는](?= )"
)
# Turns of phrase whose words would say something elsewhere.
_PHRASES_OF_VERDICTS = re.compile(
    r"\b(?:needs? (?:some |more )?(?:improvement|work)"
    r"|(?:could|should|must|can) be (?:better|improved|different)"
    r"|room for improvement|mismatch (?:detected|found)|ground truth"
    r"|(?:answers?|outputs?|predictions?|responses?|results?|they) (?:differs?|(?:is|are) different)"
    r"|(?:differs?|different) from (?:what was )?(?:the )?expected"
    r"|quality\W+(?:is )?(?:bad|low|poor)|(?:bad|low|poor) quality(?=\W*$))(?!\w)",
    re.IGNORECASE,
)

# A score repeats what the reflection model is told anyway: "Score: 0.3", "0 points", "Fail: 0/1".
_NUMBER = r"[-+]?\d+(?:[.,]\d+)?(?:\s*%)?"
_OUT_OF = rf"\s*(?:/|(?:out )?of|de)\s*{_NUMBER}"
_LABEL = (
    r"(?:\b(?:scored?|accuracy|exact match|(?-i:EM)|f1|pontuação)|得分|分数|评分|スコア|点数|점수[는가]?)"
    r"(?: (?:is|was|of|foi|é))?\s*[:=：]?|\b(?:grade|marks?|nota|points?|rating|threshold)\s*[:=]"
)
_SCORE = re.compile(
    rf"(?:{_LABEL})\s*{_NUMBER}(?:{_OUT_OF})?"
    rf"|\(threshold {_NUMBER}\)|{_NUMBER}(?:{_OUT_OF})?\s*(?:marks?|percent|points?|pontos?)\b",
    re.IGNORECASE,
)
_BARE_SCORE = re.compile(rf"(?<!\w){_NUMBER}(?:{_OUT_OF}|(?<=%))")
# With one of these, "3/4" is an answer.
_OF_AN_ANSWER = re.compile(
    r"\b(?:be|but|expected|got|instead|must|not|should|than|want(?:ed)?)\b", re.IGNORECASE
)

_WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")

_QUOTATION = re.compile(
    r"(?<!\w)'[^']+'(?!\w)|\"[^\"]+\"|`[^`]+`|“[^”]+”|‘[^’]+’|«[^»]+»|「[^」]+」|『[^』]+』|《[^》]+》"
)
_FEWEST_WORDS = 2


def says_something(text: str, named: Iterable[str]) -> bool:
    """Tell whether a text quotes something, names a word of its case, or has a few words besides a verdict.

    Args:
        text: The feedback.
        named: What the case and the answer hold, as texts.

    Example:
        >>> says_something("Bad format.", []), says_something("Close. Missing the date.", [])
        (False, True)
        >>> says_something("It should be billing.", ["billing"])
        True
    """
    if _QUOTATION.search(text):
        return True
    text = _PHRASES_OF_VERDICTS.sub(" ", _SCORE.sub(" ", text))
    without = _BARE_SCORE.sub(" ", text)
    if not _words(without) and not _OF_AN_ANSWER.search(text):
        text = without
    words = _words(text)
    for value in named:
        in_script = _WITHOUT_SPACES.search(value) and len(value) > 1 and value in text
        if in_script or words & _words(value):
            return True
    # Two characters are about a word.
    characters = len(_WITHOUT_SPACES.findall(_PARTS_OF_VERDICTS.sub("", text)))
    return len(words) + characters // 2 >= _FEWEST_WORDS


def _words(text: str) -> set[str]:
    """Give words and numbers, but for those of verdicts and single letters."""
    words = re.findall(r"\d+(?:[.,]\d+)*|[^\W\d]\w+", _WITHOUT_SPACES.sub(" ", text.lower()))
    telling = {word for word in words if not _OF_VERDICTS.fullmatch(word)}
    # "No citation." says what is not there.
    lacking = {f"no {word}" for no, word in itertools.pairwise(words) if no == "no" and word in telling}
    return telling | lacking
