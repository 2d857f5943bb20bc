"""What is read of a script, held to what bash itself makes of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.run.init import shell_commands
from opsctl.run.init.shell_commands import Script
from opsctl.run.init.shell_script import read_script
from opsctl.run.init.shell_tokens import Unreadable
from opsctl.run.init.traced_text import Traced

BASH = shutil.which("bash") or "bash"


def read(text: str, **given: str) -> Script:
    return read_script(Traced.of(text), given)


def words_by_us(text: str) -> list[str]:
    """The words of the last command called `show`."""
    return [word.text for word in [one for one in read(text).commands if one.name == "show"][-1].words[1:]]


def words_by_bash(text: str) -> list[str]:
    shown = 'show() { last=("$@"); }\n' + text + '\nprintf "%s\\0" "${last[@]}"\n'
    done = subprocess.run([BASH, "-c", shown], capture_output=True, timeout=20, check=True, cwd="/")
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
        'A="--a \'b c\' \\"d\\" e\\\\ f"; show $A; eval show $A; eval "show $A"',
        'A="x \'y|z\' >/dev/null"; show $A; C="show $A"; bash -c "$C"; eval $C',
        "A='x|y;z'; show \"$A\" 'type:a|b'",
        "show one; show two # show three",
        "( cd / ) || exit 1; { A=1; }; show $A",
        "A=1; A+=2; export B=$A C='3 4'; show $B \"$C\"",
        "show a 2>/dev/null >/dev/null b",
        "show \"it's\" a\\\n b # it's",
        "false && show no || show yes",
        "eval 'A=1 B=2'; show $A$B",
        "unset X; X=; show a$X b ${X:-c}",
        "A=0; B=4; ((A = B * (2 + 1))); ((A += 2)); show $A",
        "A=3; let A=A*5 'B = A + 1'; show $A $B",
        "declare -i A=5*2; A+=3; show $A",
        "((A = 1 << 2)); A=7; ( (true); show inner ); show $A",
        "set -- ; f() { echo never; }; show $'a'",
        'A="say \\"hi\\" \\$X"; show "$A"',
        "exit_early=0\nif [[ $exit_early == 1 ]]; then exit 1; fi\nshow on",
        # What a shell of its own sets is nothing to who comes behind.
        "A=1; (A=2; B=3); show $A ${B:-none}",
        "A=1; { A=2; } | cat; A=${A}x | cat; show $A",
        "A=1; echo 5 | read A; show $A",
        "A=1; { A=2; } & wait; show $A",
        "A=1; (exit 0); show $A",
        "A=1; bash -c 'A=2; exit 0'; show $A",
        "A=1; export A; bash -c 'show() { :; }; exit'; show on",
        # A command's own variables.
        "A=1; A=2 show $A; show $A",
        "A=1; A=2 true; show $A",
        "IFS= A=3 true; B=4 show a; show ${A:-none}",
        "A=1; f() { A=2; B=$V; }; V=1 f; show $A $B ${V:-none}",
        "set -- a b; X=1 shift; X=2 eval 'B=$X'; X=3 cd /; show $1 $B ${X:-none}",
        "A=3; A=5 let B=A+1; show $A $B",
        # Loops.
        'B=; for A in 1 2 \'x y\'; do B="$B<$A>"; done; show "$B" "$A"',
        'for N in {0..400..100} b{c,d{e,f}}g {5..3}; do B+=" --n $N"; done; show $B',
        "for A in 1 2; do for B in a b; do C+=$A$B; done; done; show $C",
        "for A in 1 2 3; do if [ $A = 2 ]; then continue; fi; B+=$A; done; show $B",
        "for A in 1 2 3; do [ $A = 2 ] && break; B+=$A; done; show $B $A",
        "for A in; do B=1; done; show ${B:-none}",
        "for A in 1 2; do show $A; done >/dev/null; show ${A}",
        "N=3; while [ $N -gt 0 ]; do B+=$N; ((N--)); done; show $B $N",
        "N=0; until ((N >= 3)); do N=$((N + 1)); done; show $N",
        "N=0; while [[ $N -lt 9 ]]; do N=$((N+1)); [[ $N == 4 ]] || continue; break; done; show $N",
        'C=; A=(1 2 3); for B in "${A[@]}"; do C=$B$C; done; show $C ${#A[@]}',
        # Functions.
        "f() { A=$1; local B=$2; C=$B$#; }; B=out; f x 'y z'; show $A $B \"$C\"",
        'f() { if [ "$1" = on ]; then return; fi; A=2; }; A=1; f on; show $A; f off; show $A',
        'function add { for one in "$@"; do S=$((S + one)); done; }; S=0; add 1 2 3; show $S',
        "f() { g $1; }\ng() { A=g$1; }\nA=0\nf 7\nshow $A",
        "A=1 B=1 C=1; f() { declare A=2; typeset -i B=2; declare -g C=2; }; f; show $A $B $C",
        "A=1; f() { A=2; }; unset -f f; f 2>/dev/null; show $A",
        "A=1; builtin eval A=2; command export B=3; show $A $B",
        "f() { show \"$@\"; }; f 1 '2 3'",
        "f() { exit 0; }; show before; true || f; show behind",
        # What it is called with.
        'set -- 1e-4 \'a b\' c; show $1 "$2" ${3} ${4:-d} $# "$@"; shift; show $1 $#',
        "set -- --lr 1 --wd 2; while [[ $# -gt 0 ]]; do case $1 in --lr) L=$2; shift 2 ;; --wd) W=$2; shift 2 ;; esac; "
        "done; show $L $W",
        # Tests.
        "A=1; B=2; [[ $A == 1 && $B == 3 ]] && C=1; [[ $A == 1 || $B == 3 ]] && D=2; show ${C:-no} $D",
        "A=13b; [[ $A == 1* ]] && B=1; [[ $A == '1*' ]] && C=1; [ $A = '1*' ] && D=1; show $B ${C:-no} ${D:-no}",
        "A=13b; [ $A = 1* ] && B=1; [[ $A != 1* ]] && C=1; show ${B:-no} ${C:-no}",
        "[ 1 -eq 1 -a a != b ] && A=1; [ 1 -eq 2 -o a = b ] || B=2; show $A $B",
        "[[ ! ( a == b || 2 -lt 1 ) ]] && C=3; show $C",
        "A=x; [[ $A ]] && B=1; if [[ -n $A ]] && [ 2 -gt 1 ]; then C=1; fi; show $B $C",
        "if ! [ a = a ]; then D=1; fi; show ${D:-no}",
        "A=4; (( A > 3 && A < 9 )) && B=1; if ((A == 5)); then B=2; fi; show $B",
        "if true; then A=1; fi; if false; then A=2; fi; false || B=3; show $A $B",
        # Arrays and what is done to values.
        'A=(1 2 3); A[1]=x; A[3]=y; A[0]+=z; B[0]=b; I=2; A[$I]=w; show "${A[@]}" $B "${A[*]}"',
        "A+=(1); A+=(2 '3 4'); show \"${A[@]}\" ${#A[@]} ${#A}",
        "P=a/b.tar.gz; show ${P%.*} ${P%%.*} ${P##*/} ${P#*/} ${P/a/x} ${P//./_} ${P%.none} ${#P} ${P^^}",
        "A=5; ((A++)); ((A--)); ((A -= 2)); let A+=4; show $A $((A > 2)) $((A == 7 && A < 8))",
        'A=1; N=A; declare "$N=2 3"; export "B=$A" \'C=4\'; show "$A" $B $C',
        "A=1 B=$A; show $A $B; export C=$B D=2; show $C$D",
        # Here-documents and what stands where.
        "cat <<-E >/dev/null\n\tA\n\tE\nshow on",
        "A=1; bash <<E\nA=2\nE\nshow $A",
        "A=1; eval A=2 '; B=$A'; show $A $B",
        "show a{1,2}b x{y z} {} '{a,b}' \"{1..3}\"",
        "show one >/dev/null; { show two; } 2>&1; show three # end",
        # Commands in the place of files.
        'exec 3> >(cat >/dev/null); show a; while read A; do :; done < <(echo b); show c <(:) d | cat; show "<(e)"',
    ],
)
def test_the_words_of_a_command_are_those_that_bash_hands_it(text: str) -> None:
    assert words_by_us(text) == words_by_bash(text)


@pytest.mark.parametrize(("mark", "expected"), [("END", "a 1 b\n"), ("'END'", "a $A b\n")])
def test_a_here_document_is_what_bash_writes(mark: str, expected: str) -> None:
    text = f"A=1\ncat <<{mark} > file.json\na $A b\nEND\n"
    assert read(text).files.known["file.json"].text == expected
    done = subprocess.run([BASH, "-c", text.replace("> file.json", "")], capture_output=True, text=True, timeout=20)
    assert done.stdout == expected


def test_what_a_shell_is_handed_is_read_as_a_script() -> None:
    text = "export CMD=\"train.py --lr 1\"\nexport LAUNCHER='torchrun -n 2'\n"
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
        "for A in $LIST; do B=$A; done",
        "for A in *.json; do B=$A; done",
        "for B in 1 2; do if [ -f /tmp/x ]; then break; fi; A=$B; done",
        "while [ -f /tmp/x ]; do A=1; done",
        "if [ -f /tmp/x ]; then A=1; else A=2; fi",
        "if [ -f /tmp/x ] && [ a = a ]; then A=1; fi",
        "A+=$(date); f() { [ -f /tmp/x ] && return; A=1; }; f",
        "set -- $LIST; A[$1]=3",
        "while read A; do :; done",
        "case $WHO in me) A=1 ;; esac",
        "f() { A=1; }; [ -f /tmp/x ] && f",
        "[[ $X == 1 && $Y == 2 ]] && A=1",
        "[ -f /tmp/x ] && unset A",
        "((A = B * 2))",
        "((A++, A++))",
        "let A=B*2",
        "printf -v A %d 3",
        "IFS=, read -r A B <<< '1,2'",
        "while IFS= read -r A; do break; done < conf",
        "LC_ALL=C printf -v A %d 3",
        "V=1 read A",
        "builtin read A",
        "A=(0 1); unset A[0]",
        "f() { A=1; }; [ -f /tmp/x ] && unset -f f; f",
        "[ -f /tmp/x ] && f() { A=1; }; f",
        "printf -vA 2",
        "f() { local -n B=$1; B=2; }; f A",
        "declare -n B=A; A=1; B=2",
        "declare -n B=$X",
        "A=2 export A",
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


def test_what_a_branch_sets_holds_within_it() -> None:
    script = read("A=0\nif [ -f x ]; then\nA=1\nrun $A\nfi\nwhile read L; do A=2; run $A; done\nrun $A")
    assert [[word.text for word in one.words] for one in script.commands if one.name == "run"] == [
        *(["run", "1"], ["run", "2"], ["run", "${A}"])
    ]
    assert script.values.unsure["A"] == 6


def test_a_turn_that_is_not_followed_begins_with_what_another_may_have_set() -> None:
    script = read("A=0\nwhile read L; do run $A; A=1; done")
    assert [word.text for word in script.commands[-1].words] == ["run", "${A}"]


@pytest.mark.parametrize(
    "text", ["f() { f; }; f", "f() { g; }; g() { f; }; f", "f() { A=$A1; [ -f x ] && f; }; f; A=0"]
)
def test_a_function_that_calls_itself_is_said_not_to_be_followed(text: str) -> None:
    script = read(f"A=0\n{text}\nrun $A")
    assert [word.text for word in script.commands[-1].words] == ["run", "0"]
    assert [line for line, what in script.told if what.startswith(("f ", "g "))][:1] == [2]


def test_what_a_function_that_calls_itself_sets_is_not_known() -> None:
    script = read("N=0\nf() { N=$((N + 1)); [ $N -lt 3 ] && f; }\nf\nrun $N")
    assert [word.text for word in script.commands[-1].words] == ["run", "${N}"]


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"f{one}() {{ f{one + 1}; f{one + 1}; f{one + 1}; f{one + 1}; }}\n" for one in range(12)) + "f0",
        "".join(f"while read x{one}; do\n" for one in range(14)) + "X=1\n" + "done\n" * 14,
    ],
)
def test_a_script_that_goes_on_and_on_is_said_to(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_commands, "MOST_STEPS", 500)
    with pytest.raises(Unreadable, match=r"^line \d+: "):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "A=aaaaaaaaaa\n" + "A=$A$A\n" * 30,
        "A=aaaaaaaaaa\n" + "A+=$A\n" * 30,
        "A=(aaaaaaaaaa)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 30,
        "A=(" + "{a,b}" * 26 + ")\nA=$A",
        "for A in {1..1000000}; do :; done",
    ],
)
def test_a_value_that_grows_without_end_is_not_known(text: str) -> None:
    assert "$" in read(f"{text}\nrun $A").commands[-1].words[1].text


def test_what_nobody_has_said_that_the_script_is_called_with_is_missing() -> None:
    script = read("show $1 ${2:-x} $1")
    assert [word.text for word in script.commands[-1].words] == ["show", "${1}", "x", "${1}"]
    assert script.values.missing == {"1"}
    script = read_script(Traced.of('show $1 "$@" ${3:-d} $4'), {}, ["a", "b c"])
    assert [word.text for word in script.commands[-1].words] == ["show", "a", "a", "b c", "d", "${4}"]
    assert script.values.why_unknown("4").startswith("$4 ") and script.values.why_unknown("4").endswith(" 2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nB=/x/<NAME>\nrun", (2, "> ")),
        ("A=$N*(B)\nrun", (1, "( ")),
        ("run\nALL = (\na\n)", (2, "( ")),
    ],
)
def test_what_no_shell_reads_is_put_down_and_bash_refuses_it(text: str, expected: tuple[int, str]) -> None:
    line, what = read(text).refused[0]
    assert line == expected[0] and what.startswith(expected[1])
    english = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run([BASH, "-n", "-c", text], env=english, capture_output=True, timeout=20, check=False)
    assert done.returncode and f"line {line}: syntax error" in done.stderr.decode()


def test_behind_an_exit_nothing_is_read() -> None:
    assert [one.name for one in read("run 1\nexit 0\nrun 2").commands] == ["run", "exit"]
    done = read("run 1 || exit 1\nrun 2").commands
    assert [(one.name, one.is_sure) for one in done] == [("run", True), ("exit", False), ("run", True)]


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


WORDS = ["1", "x", "'y z'", '"$A"', "$B", "${A}q", "${B:-d}", '"${A} $B"', "$((N+1))", "${A%x}", "p{1,2}", "$1", '"$*"']
ASSIGNMENTS = ["A=1", "B=$C", 'A="$A $B"', "C=${B}k", "B+=2", "N=$((N+1))", "((N+=2))", "L+=(7 $A)"]
ASSIGNMENTS += ["C=${L[0]}${#L[@]}", "export A=4", "B=7 true", "A=$1$#", "eval B=\\$A", "set -- $A z"]
TESTS = ['[ "$A" = x ]', "[[ $B == x* && $N -lt 4 ]]", "((N%2))", "[[ -n $A || $C == 1 ]]", "! [[ $A == $B ]]", "false"]


def statement(random: Random, depth: int = 0, in_loop: bool = False) -> str:
    """One of which bash and the script alone decide what it does; `f` is a function."""

    def body(in_loop: bool = in_loop) -> str:
        return "; ".join(statement(random, depth + 1, in_loop) for _ in range(random.randint(1, 3)))

    test, word, assignment = random.choice(TESTS), random.choice(WORDS), random.choice(ASSIGNMENTS)
    forms = [
        lambda: assignment,
        lambda: f"{test} && {assignment} || {random.choice(ASSIGNMENTS)}",
        lambda: f"{test} && {random.choice(['break', 'continue'])}" if in_loop else assignment,
        lambda: f"f {word} {random.choice(WORDS)}",
        lambda: f"if {test}; then {body()}; elif {random.choice(TESTS)}; then {body()}; else {body()}; fi",
        lambda: f"for I in {word} {random.choice(WORDS)} 3; do {body(in_loop=True)}; A+=$I; done",
        lambda: f"K{depth}=0; while ((K{depth} < 2)); do ((K{depth}++)); {body(in_loop=True)}; done",
        lambda: f"( {body(in_loop=False)} )",
        lambda: f"{{ {body(in_loop=False)}; }} | cat",
        lambda: f"case {word} in 1|x) {body()} ;; y*) {body()} ;; *) {body()} ;; esac",
    ]
    return random.choice(forms if depth < 3 else forms[:4])()


def program(random: Random) -> str:
    inner = "; ".join(random.choice(ASSIGNMENTS) for _ in range(3))
    lines = [
        "A=1; B=x; C='u v'; N=1; L=(0); set -- s 't w'",
        f"f() {{ local A=$1; {inner}; [[ $2 ]] && return; B=$2; }}",
    ]
    lines += [statement(random) for _ in range(4)]
    return "\n".join([*lines, 'show "$A" "$B" "$C" "$N" "${L[@]}" $A $# "$@"'])


def test_of_programs_made_by_chance_what_is_told_is_what_bash_has() -> None:
    programs = [program(Random(seed)) for seed in range(40)]
    shown = 'show() { printf "%s\\0" "$@"; }\n' + "".join(f"(\n{one}\n)\nprintf '\\1\\0'\n" for one in programs)
    done = subprocess.run([BASH, "-c", shown], capture_output=True, timeout=60, check=True, cwd="/")
    theirs = done.stdout.decode().split("\1\0")[:-1]
    told = 0
    for text, words in zip(programs, theirs, strict=True):
        ours = words_by_us(text)
        if not any("$" in word for word in ours):
            told += 1
            assert "\0".join([*ours, ""]) == words, text
    assert told > 30
