"""What is read of a script, held to what bash itself makes of it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.beginning.shell_commands import Script
from opsctl.beginning.shell_script import read_script
from opsctl.beginning.shell_words import Unreadable
from opsctl.beginning.traced import Traced

BASH = shutil.which("bash") or "bash"


def read(text: str, **given: str) -> Script:
    return read_script(Traced.of(text), given)


def words_by_us(text: str) -> list[str]:
    """The words of the last command called `show`."""
    return [word.text for word in [one for one in read(text).commands if one.name == "show"][-1].words[1:]]


def words_by_bash(text: str) -> list[str]:
    shown = 'show() { last=("$@"); }\n' + text + '\nprintf "%s\\0" "${last[@]}"\n'
    done = subprocess.run([BASH, "-c", shown], capture_output=True, timeout=20, check=True)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize(
    "text",
    [
        "show a 'b c' \"d $((1 + 2))\" e\\ f",
        'A=1; B="x$A y${A}z"; show $B "$B"',
        'ARGS=" \\\n  --one 1 \\\n  --two $((3*4)) \\\n "\nshow $ARGS end',
        'ARGS="--one 1\n  --two 2"; show $ARGS',
        'A=(--one 1 # said why\n  \'two words\' "a/x")\nA+=(--three)\nshow "${A[@]}" ${A[1]} last',
        "A=(1 2); show x${A[0]} ${A[@]}",
        "N=8; M=3; show $((N/M)) $(( (N-1)*M % 5 )) $((-N/M)) $((2**5))",
        "X=${UNSET_HERE:-7b} Y=${X:-no}; show $X $Y ${X:+yes} ${UNSET_HERE:+yes}",
        "if [[ a == b ]]; then A=1; elif [ 2 -gt 1 ]; then A=2 B=3; else A=4; fi; show $A $B",
        "R=2\nif   [[ ${R} == 1 ]]; then T=1    S=3\nelif [[ ${R} == 2 ]]; then T=2   S=4\nelse :\nfi\nshow $T $S",
        "case 13b in 7b|8b) L=32 ;; 1*) L=40 ;; *) L=0 ;; esac; show $L",
        "[[ -z $UNSET_HERE ]] && A=1; [[ -n $UNSET_HERE ]] || B=2; [ x != x ] && B=3; show $A $B",
        "! [[ a == a ]] && A=1; A=${A:-2}; show $A",
        "A='x|y;z'; show \"$A\" 'type:a|b'",
        "show one; show two # show three",
        "( cd / ) || exit 1; { A=1; }; show $A",
        "A=1; A+=2; export B=$A C='3 4'; show $B \"$C\"",
        "show a 2>/dev/null >/dev/null b",
        "show \"it's\" a\\\n b # it's",
        "true && show yes || show no",
        "eval 'A=1 B=2'; show $A$B",
        "unset X; X=; show a$X b ${X:-c}",
        "A=0; B=4; ((A = B * (2 + 1))); ((A += 2)); show $A",
        "A=3; let A=A*5 'B = A + 1'; show $A $B",
        "declare -i A=5*2; A+=3; show $A",
        "((A = 1 << 2)); A=7; ( (true); show inner ); show $A",
        "set -- ; f() { echo never; }; show $'a'",
        'A="say \\"hi\\" \\$X"; show "$A"',
        "exit_early=0\nif [[ $exit_early == 1 ]]; then exit 1; fi\nshow on",
    ],
)
def test_the_words_of_a_command_are_those_that_bash_hands_it(text: str) -> None:
    assert words_by_us(text) == words_by_bash(text)


@pytest.mark.parametrize(("mark", "expected"), [("END", "a 1 b\n"), ("'END'", "a $A b\n")])
def test_a_here_document_is_what_bash_writes(mark: str, expected: str) -> None:
    text = f"A=1\ncat <<{mark} > file.json\na $A b\nEND\n"
    assert read(text).files["file.json"].text == expected
    done = subprocess.run([BASH, "-c", text.replace("> file.json", "")], capture_output=True, text=True, timeout=20)
    assert done.stdout == expected


def test_what_a_shell_is_handed_is_read_as_a_script() -> None:
    text = "CMD=\"train.py --lr 1\"\nexport LAUNCHER='torchrun -n 2'\n"
    for line in ('srun bash -c "$LAUNCHER --rank \\$R $CMD"', "srun --jobid 1 bash -c '$LAUNCHER --rank $R $CMD'"):
        last = read(text + line).commands[-1]
        assert [word.text for word in last.words] == ["torchrun", "-n", "2", "--rank", "${R}", "train.py", "--lr", "1"]


def test_every_word_keeps_the_line_that_it_is_written_on_through_variables() -> None:
    words = read('A=" \\\n  --one 1 \\\n  --two 2"\nB="$A\n--three"\nrun x $B\n').commands[-1].words
    assert {word.text: word.line for word in words} == {
        **{"run": 6, "x": 6, "--one": 2, "1": 2, "--two": 3, "2": 3, "--three": 5},
    }


@pytest.mark.parametrize(
    "text",
    [
        "if [ $1 = debug ]; then A=1; fi",
        "if test_something; then A=1; else A=2; fi",
        "for A in 1 2; do B=$A; done",
        "while read A; do :; done",
        "case $WHO in me) A=1 ;; esac",
        "f() { A=1; }",
        "[[ $X == 1 && $Y == 2 ]] && A=1",
        "[ -f /tmp/x ] && unset A",
        "((A = B * 2))",
        "((A++))",
        "let A=B*2",
        "printf -v A %d 3",
        "declare -i A=B*2",
        "for ((A = 0; A < 3; A++)); do :; done",
        "(( B > 1 )) && A=1",
        "if ((A += B)); then :; fi",
        "echo $((A = B + 1))",
    ],
)
def test_what_is_set_where_nobody_can_tell_whether_is_not_known(text: str) -> None:
    script = read(f"A=0\n{text}\nrun $A")
    assert [word.text for word in script.commands[-1].words] == ["run", "${A}"]
    assert script.values.unsure["A"] == 2


def test_what_a_function_may_set_is_not_known_behind_its_call() -> None:
    script = read("f() { A=1; }\ng() { f; local C=1; }\nA=2 B=2\nrun $A\ng\nrun $A $B")
    texts = [[word.text for word in one.words] for one in script.commands if one.name == "run"]
    assert texts == [["run", "2"], ["run", "${A}", "2"]]
    assert script.values.unsure["A"] == 5


def test_behind_an_exit_nothing_is_read() -> None:
    assert [one.name for one in read("run 1\nexit 0\nrun 2").commands] == ["run", "exit"]
    assert [one.name for one in read("run 1 || exit 1\nrun 2").commands] == ["run", "run"]


@pytest.mark.parametrize(
    ("text", "line"), [("a\nb 'c\nd", 2), ('x\n\ny="z', 3), ("A=(1\n2", 1), ("echo ${X", 1), ("a\necho $(date", 2)]
)
def test_what_has_no_end_is_named_with_its_line(text: str, line: int) -> None:
    with pytest.raises(Unreadable, match=f"line {line}: "):
        read(text)


PIECES = [
    "if ",
    "then ",
    "fi\n",
    "case x in ",
    "esac\n",
    "(",
    ")",
    "{ ",
    "}",
    "[[ ",
    "]] ",
    "&&",
    "||",
    ";",
    "\n",
    "|",
    "<<E\n",
]
PIECES += [
    "'",
    '"',
    "$",
    "${A",
    "}",
    "$(",
    "`",
    "A=",
    "A=(",
    "x ",
    "\\",
    "#",
    "for ",
    "do ",
    "done ",
    "!",
    ";;",
    ">",
    "export ",
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_whatever_stands_in_a_script_it_is_read_to_its_end_or_said_to_be_unreadable(text: str) -> None:
    with contextlib.suppress(Unreadable):
        read(text)
