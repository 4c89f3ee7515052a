"""Whether a feedback says more than a verdict, as far as its words tell."""

import re
from collections.abc import Iterable

__all__ = ["says_something"]

# Words of verdicts in English and Portuguese, and those that say nothing beside them.
_OF_VERDICTS = re.compile(
    "a|again|ainda|all|almost|an|and|another|answer|any|are|as|at|bad|be|but|certa|certo|close|"
    "completely|correct|correta|correto|da|das|de|do|does|dos|e|em|errada|errado|erro|error|está|"
    "expected|fail|failed|failure|false|favor|feedback|foi|for|gave|good|have|i|in|incorrect|"
    "incorreta|incorreto|invalid|inválida|inválido|is|isn|isso|isto|it|its|just|match|matches|mean|"
    "metric|mistake|muito|na|nearly|no|nope|not|novamente|não|o|of|one|or|os|output|para|please|poor|"
    "por|que|quite|really|response|resposta|result|resultado|right|ruim|same|saída|score|ser|so|"
    "tente|text|that|the|there|this|to|totally|true|try|um|uma|very|was|were|wrong|you|your|é"
)

# The same in Chinese, Japanese and Korean, which are written without spaces or with endings.
_PARTS_OF_VERDICTS = re.compile(
    "不正确|不正解|正确|错误|不对|答案|回答|输出|格式|结果|无效|失败|重试|再试一次|这个|这是|非常|请|的|了|是|不|很"
    "|間違っています|間違い|正しくありません|誤り|出力|答え|形式|フォーマット|もう一度|してください|です|が|は|の"
    "|틀렸습니다|틀렸어요|잘못되었습니다|잘못된|잘못|올바르지 ?않습니다|오답|정답|아닙니다"
    "|출력|답변|형식|입니다|다시|시도하세요|[이가은는](?= )"
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
    return {word for word in words if not _OF_VERDICTS.fullmatch(word)}
