"""Values that are read from a script, compared with bash: no known value differs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.run.init.shell_script import Script, read_script
from opsctl.run.init.shell_syntax import Unreadable

BASH = shutil.which("bash") or "bash"


def read(text: str, **given: str) -> Script:
    return read_script(text, given)


def words_by_us(text: str) -> list[str]:
    """Return the words of the last command called `show`."""
    return list([one for one in read(text).commands if one.name == "show"][-1].words[1:])


def words_by_bash(text: str) -> list[str]:
    shown = 'show() { last=("$@"); }\n' + text + '\nprintf "%s\\0" "${last[@]}"\n'
    done = subprocess.run([BASH, "-c", shown], capture_output=True, timeout=20, check=True, cwd="/")
    return done.stdout.decode().split("\0")[:-1]


FOLLOWED = [
    "export -n NOT_SET_HERE; declare -x A=1; export -n A; show $A",
    'A=(1 2); show "${A[1]}" "x${A[200]}"',
    "show a 'b c' \"d $((1 + 2))\" e\\ f",
    'A=1; B="x$A y${A}z"; show $B "$B"',
    'ARGS=" \\\n  --one 1 \\\n  --two $((3*4)) \\\n "\nshow $ARGS end',
    'ARGS="--one 1\n  --two 2"; show $ARGS',
    'A=(--one 1 # said why\n  \'two words\' "a/x")\nA+=(--three)\nshow "${A[@]}" ${A[1]} last',
    "A=(1 2); show x${A[0]} ${A[@]}",
    "if [[ a == b ]]; then A=1; elif [ 2 -gt 1 ]; then A=2 B=3; else A=4; fi; show $A $B",
    "R=2\nif   [[ ${R} == 1 ]]; then T=1    S=3\nelif [[ ${R} == 2 ]]; then T=2   S=4\nelse :\nfi\nshow $T $S",
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
    "((A = 1 << 2)); A=7; ( (true); show inner ); show $A",
    'A="say \\"hi\\" \\$X"; show "$A"',
    "exit_early=0\nif [[ $exit_early == 1 ]]; then exit 1; fi\nshow on",
    "A=1; (A=2; B=3); show $A ${B:-none}",
    "A=1; { A=2; } | cat; A=${A}x | cat; show $A",
    "A=1; echo 5 | read A; show $A",
    "A=1; { A=2; } & wait; show $A",
    "A=1; (exit 0); show $A",
    "A=1; bash -c 'A=2; exit 0'; show $A",
    "A=1; export A; bash -c 'show() { :; }; exit'; show on",
    "A=1; A=2 show $A; show $A",
    "A=1; A=2 true; show $A",
    "IFS= A=3 true; B=4 show a; show ${A:-none}",
    "A=1; f() { A=2; }; unset -f f; f 2>/dev/null; show $A",
    "A=1; builtin eval A=2; command export B=3; show $A $B",
    "f() { exit 0; }; show before; true || f; show behind",
    "A=x; [[ $A ]] && B=1; if [[ -n $A ]] && [ 2 -gt 1 ]; then C=1; fi; show $B $C",
    "if ! [ a = a ]; then D=1; fi; show ${D:-no}",
    "if true; then A=1; fi; if false; then A=2; fi; false || B=3; show $A $B",
    'A=1; N=A; declare "$N=2 3"; export "B=$A" \'C=4\'; show "$A" $B $C',
    "A=1 B=$A; show $A $B; export C=$B D=2; show $C$D",
    "cat <<-E >/dev/null\n\tA\n\tE\nshow on",
    "A=1; bash <<E\nA=2\nE\nshow $A",
    "A=1; eval A=2 '; B=$A'; show $A $B",
    "show one >/dev/null; { show two; } 2>&1; show three # end",
    'exec 3> >(cat >/dev/null); show a; while read A; do :; done < <(echo b); show c <(:) d | cat; show "<(e)"',
    "N=2; if [ $N -gt 8 ] 2>/dev/null; then A=1; fi; [ $N -gt 8 ] 2>&1 >/dev/null && B=1; "
    "[[ $N == 3 ]] 2>/dev/null || C=1; show ${A:-no} ${B:-no} $C",
    "if false; then [[ -z ${A:=7} ]]; case ${A:=8} in *) : ;; esac; fi; : ${A:=6}; show $A",
    'E=; [ -n $E ] && A=1; [ -z $E ] && B=1; [ "$E" ] && C=1; [ $E ] && D=1; show $A $B ${C:-no} ${D:-no}',
    "N=2; test $N -gt 8 && A=1; if test $N -lt 8; then B=1; fi; test -n x >/dev/null || C=1; show ${A:-no} $B ${C:-no}",
    "A=1; A=2 && B=2 & wait; show $A ${B:-no}",
    "N=0; while true; do for J in a b c; do ((N++)); ((N == 5)) && break 9; done; [ $N -gt 8 ] && break; done; show ok",
    "X=$(case a in a) echo 1;; (b) echo 2;; esac); A=1; ( A=$(case b in b) echo 6;; esac) ); show $A",
    "if false; then for I in ${A:=7}; do :; done; fi; [[ a == b && -n ${A:=8} ]]; "
    "[[ a == a || ${A:=9} ]]; show ${A:=6}",
]
#: Texts that bash decides and that are read only in part: what is known must be what bash has.
IN_PART = [
    "N=8; M=3; show $((N/M)) $(( (N-1)*M % 5 )) $((-N/M)) $((2**5))",
    "X=${UNSET_HERE:-7b} Y=${X:-no}; show $X $Y ${X:+yes} ${UNSET_HERE:+yes}",
    "case 13b in 7b|8b) L=32 ;; 1*) L=40 ;; *) L=0 ;; esac; show $L",
    "set -- ; f() { echo never; }; show $'a'",
    "set -- a b; X=1 shift; X=2 eval 'B=$X'; X=3 cd /; show $1 $B ${X:-none}",
    'set -- 1e-4 \'a b\' c; show $1 "$2" ${3} ${4:-d} $# "$@"; shift; show $1 $#',
    "A=1; B=2; [[ $A == 1 && $B == 3 ]] && C=1; [[ $A == 1 || $B == 3 ]] && D=2; show ${C:-no} $D",
    "A=13b; [[ $A == 1* ]] && B=1; [[ $A == '1*' ]] && C=1; [ $A = '1*' ] && D=1; show $B ${C:-no} ${D:-no}",
    "M=gpt-13b-bf16; [[ $M == *\"13b\"* ]] && A=1; [[ $M = *'bf16'* ]] && B=1; [[ $M == *\\b* ]] && C=1; show $A $B $C",
    "M='a*c'; [[ abc == \"$M\" ]] && A=1; [[ abc == $M ]] && B=1; [[ abc == a'*'c ]] && C=1; show ${A:-no} $B ${C:-no}",
    "M='*'; case abc in \"*\") A=1 ;; '*'c) A=2 ;; \\*) A=3 ;; a*) A=4 ;; esac; show $A",
    'show ${X:-a b} "${X:-c  d}" ${X:-1 2 3}; A=${X:-u v}; show "$A"; show ${X:="7 8"}',
    "! false | true && A=1; ! true | false && B=1; show ${A:-no} $B",
    "A=0; B=4; ((A = B * (2 + 1))); ((A += 2)); show $A",
    "A=3; let A=A*5 'B = A + 1'; show $A $B",
    "declare -i A=5*2; A+=3; show $A",
    "A=1; f() { A=2; B=$V; }; V=1 f; show $A $B ${V:-none}",
    "A=3; A=5 let B=A+1; show $A $B",
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
    "f() { A=$1; local B=$2; C=$B$#; }; B=out; f x 'y z'; show $A $B \"$C\"",
    'f() { if [ "$1" = on ]; then return; fi; A=2; }; A=1; f on; show $A; f off; show $A',
    'function add { for one in "$@"; do S=$((S + one)); done; }; S=0; add 1 2 3; show $S',
    "f() { g $1; }\ng() { A=g$1; }\nA=0\nf 7\nshow $A",
    "A=1 B=1 C=1; f() { declare A=2; typeset -i B=2; declare -g C=2; }; f; show $A $B $C",
    "f() { show \"$@\"; }; f 1 '2 3'",
    "set -- --lr 1 --wd 2; while [[ $# -gt 0 ]]; do case $1 in --lr) L=$2; shift 2 ;; --wd) W=$2; "
    "shift 2 ;; esac; done; show $L $W",
    "A=13b; [ $A = 1* ] && B=1; [[ $A != 1* ]] && C=1; show ${B:-no} ${C:-no}",
    "[ 1 -eq 1 -a a != b ] && A=1; [ 1 -eq 2 -o a = b ] || B=2; show $A $B",
    "[[ ! ( a == b || 2 -lt 1 ) ]] && C=3; show $C",
    "A=4; (( A > 3 && A < 9 )) && B=1; if ((A == 5)); then B=2; fi; show $B",
    'A=(1 2 3); A[1]=x; A[3]=y; A[0]+=z; B[0]=b; I=2; A[$I]=w; show "${A[@]}" $B "${A[*]}"',
    "A+=(1); A+=(2 '3 4'); show \"${A[@]}\" ${#A[@]} ${#A}",
    "P=a/b.tar.gz; show ${P%.*} ${P%%.*} ${P##*/} ${P#*/} ${P/a/x} ${P//./_} ${P%.none} ${#P} ${P^^}",
    "A=5; ((A++)); ((A--)); ((A -= 2)); let A+=4; show $A $((A > 2)) $((A == 7 && A < 8))",
    "show a{1,2}b x{y z} {} '{a,b}' \"{1..3}\"",
    "case 8 in [^0-9]*) A=1 ;; [!0-7]) A=2 ;; esac; [[ a-c == a[b-]c ]] && B=1; "
    "[[ 'a]' == a[]] ]] && C=1; show $A $B $C",
    "V=8nodes; show ${V%%[^0-9]*} ${V##*[0-9]} ${V%n*s} ${V%'*'} ${V#?} ${V%\"s\"}",
    'V="a b c"; show "${V%% *}" "${V##* }" ${V// /_} "${V/b /}" ${V/?b/x}; V=x#y; show "${V%#*}" ${V#*#}',
    "big() { [ $1 -gt 8 ]; }; big 2 && A=1; big 9 && B=1; if big 3; then C=1; fi; ! big 3 && D=1; "
    "show ${A:-no} $B ${C:-no} $D",
    "f() { if [ $1 = a ]; then return 0; fi; return 1; }; f a && A=1; f b || B=1; f c && C=1; show $A $B ${C:-no}",
    "g() { false; return; }; g && A=1; { false; } || B=1; ( true ) && C=1; "
    "echo x >/dev/null && D=1; show ${A:-no} $B $C $D",
    "for I in 1 2; do X=$I; for J in a b; do A=$J$I; [ $I = 1 ] && break 2; done; done; show $X $A",
    "for I in 1 2; do for J in a b; do A+=$J$I; [ $J = a ] && continue 2; A=no; done; A=no; done; show $A",
    "f() { for I in 1 2; do [ $I = 2 ] && return; A=$I; done; A=no; }; f; show $A",
    "X=1; unset X; Y=; show ${X-a} ${Y-b}c ${X+d} ${Y+e}; [[ -v X ]] && A=1; "
    "show ${X-a} ${Y-b}c ${X+d} ${Y+e} ${A:-no}",
    'L="1 2"; A=(1 2); IFS=,; B="${A[@]}"; unset IFS; show $L "${A[*]}" $B; IFS=" "; show $L "${A[*]}"',
]
#: Behind each, the value of A is not known.
NOT_KNOWN = [
    "f() { A=1; return; A=0; }; f",
    "for I in 1 2; do A=1; break; A=0; done",
    "set -- 0 1; while read L; do [ $1 = 0 ] || A=1; A=$1; shift; done",
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
    "A=2 export A",
    "declare -i A=B*2",
    "for ((A = 0; A < 3; A++)); do :; done",
    "(( B > 1 )) && A=1",
    "if ((A += B)); then :; fi",
    "echo $((A = B + 1))",
    "grep -q H100 /proc/version && A=1",
    "hostname | grep -q juwels && A=1",
    "command -v nvcc >/dev/null || A=1",
    "which nvcc && A=1",
    "test -f /x && A=1",
    "f() { grep -q H100 /x; }; f && A=1",
    "f() { A=1; }; cd /x && f",
    "B=$(grep -c x /y) && A=1",
    "f() { while read L; do return 1; done; return; }; f && A=1",
    'if [ -z "$SLURM_JOB_ID" ]; then A=1; fi',
    "[[ -n $HOME ]] && A=1",
    "[[ -z ${SLURM_JOB_ID+x} ]] && A=1",
    "A=${SLURM_ARRAY_TASK_ID:-0}",
    "A=${HOSTNAME-x}",
    "A=${SLURM_JOB_ID:+1}",
    "A=${USER+1}",
    "B=${CUDA_VISIBLE_DEVICES:-0}; case $B in 0) A=1 ;; esac",
    "B=$(date); A=${B:-1}",
    "for I in 1 2; do A=$I; for J in 1 2; do [ -f /x ] && break 2; done; done",
    "for I in 1 2; do A=$I; while read L; do break 2; done; done",
    "f() { for I in 1 2; do [ -f /x ] && return; done; A=1; }; f",
    "f() { while read L; do return; done; A=1; }; f",
    "A=$((-2**2))",
    "A=$((2**62 + 2**62))",
    'L=(1 2); IFS=,; A="${L[*]}"',
    'set -- 1 2; IFS=,; A="$*"',
    "L=1,2; IFS=,; set -- $L; A=$1",
    "L=1,2; IFS=,; B=($L); A=${B[0]}",
    "IFS=$(x); L=1x2; for A in $L; do :; done",
    "L=(a*_b); A=${L[0]}",
    "set -- x?; A=$1",
    "L='[ab]*'; for A in $L; do :; done",
    "L=([1]=x [0]=1); A=${L[0]}",
    'L=(["k"]=x); A=${#L[@]}',
    "[[ run8 == *[[:digit:]]* ]] && A=1",
    "[[ aa == +(a) ]] && A=1",
    "case x in @(x|y)) A=1 ;; esac",
    "A=run8; A=${A%%[[:digit:]]}",
    "A=run8; A=${A/#run/x}",
    "E='x y'; [ $E = x ] || A=1",
    "[ a -eq a ] && A=1",
]


@pytest.mark.parametrize("text", FOLLOWED)
def test_the_words_of_a_command_are_those_that_bash_hands_it(text: str) -> None:
    assert words_by_us(text) == words_by_bash(text)


@pytest.mark.parametrize("text", IN_PART)
def test_of_what_is_read_in_part_nothing_known_differs_from_bash(text: str) -> None:
    ours, theirs = words_by_us(text), words_by_bash(text)
    assert any("$" in word for word in ours)
    assert {word for word in ours if "$" not in word} <= set(theirs)


@pytest.mark.parametrize("text", NOT_KNOWN)
def test_what_the_script_does_not_decide_is_not_known(text: str) -> None:
    assert "$" in read(f"A=0\n{text}\nrun $A").commands[-1].words[1]


@pytest.mark.parametrize(("mark", "expected"), [("END", "a 1 b\n"), ("'END'", "a $A b\n")])
def test_a_here_document_is_what_bash_writes(mark: str, expected: str) -> None:
    text = f"A=1\ncat <<{mark} > file.json\na $A b\nEND\n"
    assert read(text).files.known["file.json"][0] == expected
    done = subprocess.run([BASH, "-c", text.replace("> file.json", "")], capture_output=True, text=True, timeout=20)
    assert done.stdout == expected


def test_what_a_shell_is_handed_is_read_as_a_script() -> None:
    text = "export CMD=\"train.py --lr 1\"\nexport LAUNCHER='torchrun -n 2'\n"
    for line in ('srun bash -c "$LAUNCHER --rank \\$R $CMD"', "srun --jobid 1 bash -c '$LAUNCHER --rank $R $CMD'"):
        last = read(text + line).commands[-1]
        assert last.words == ("torchrun", "-n", "2", "--rank", "${R}", "train.py", "--lr", "1")


def test_what_a_loop_or_an_undecided_branch_sets_is_unknown_and_noted() -> None:
    script = read("A=0\nif [ -f x ]; then\nA=1\nrun $A\nfi\nwhile read L; do A=2; run $A; done\nrun $A")
    assert [one.words for one in script.commands if one.name == "run"] == [("run", "${A}")] * 3
    assert [(line, text.partition(":")[0]) for line, text in script.notes] == [(2, "if"), (6, "while")]


@pytest.mark.parametrize(
    ("body", "known"),
    [("run $A; A=1", "${A}"), ("if [ $A = 1 ]; then B=2; fi; run $B; A=1", "${B}"), ("A=1; run $A", "${A}")],
)
def test_a_turn_of_a_loop_begins_with_what_another_may_have_set(body: str, known: str) -> None:
    script = read(f"A=0; B=0\nwhile read L; do {body}; done\n")
    assert [one.words[1] for one in script.commands if one.name == "run"] == [known]


@pytest.mark.parametrize("text", ["f() { f; }; f", "f() { g; }; g() { f; }; f", "f() { N=$((N + 1)); f; }; f"])
def test_a_function_that_calls_itself_is_read_once(text: str) -> None:
    assert [line for line, what in read(f"N=0\n{text}").notes if what.startswith("f: ")] == [2]


@pytest.mark.parametrize("text", ["A=1\ndeclare -n B=A", "A=1\nf() { local -n B=$1; }; f A", "A=1\nexport $B=1"])
def test_a_variable_of_an_unknown_name_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(Unreadable, match=r"^line 2: "):
        read(text)


def test_functions_that_call_functions_are_read_once() -> None:
    text = "".join(f"f{one}() {{ f{one + 1}; f{one + 1}; f{one + 1}; f{one + 1}; }}\n" for one in range(30)) + "f0"
    assert len(read(text).notes) == 30


def test_an_argument_that_is_not_given_is_missing() -> None:
    assert read("show $1 ${2:-x} $1").commands[-1].words == ("show", "${1}", "x", "${1}")
    script = read_script('show $1 "$@" ${3:-d} $4', {}, ["a", "b c"])
    assert script.commands[-1].words == ("show", "a", "a", "b c", "d", "${4}")
    assert script.state.why_unknown("4").startswith("$4 ")


def test_what_the_script_asks_for_and_does_not_set_is_taken_as_unset_and_listed_once() -> None:
    script = read('[ -z "$DEBUG" ] && A=${PORT:-6000}; B=${PORT:-1}; [[ -n ${SLURM_JOB_ID} ]]; show $A ${1:-x}')
    assert script.commands[-1].words == ("show", "6000", "x")
    assert list(script.state.taken_unset) == ["DEBUG", "PORT"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("A=1\nB=/x/<NAME>\nrun", (2, ">")), ("A=$N*(B)\nrun", (1, "(")), ("run\nALL = (\na\n)", (2, "("))],
)
def test_what_no_shell_reads_is_noted_and_bash_refuses_it(text: str, expected: tuple[int, str]) -> None:
    line, what = read(text).notes[0]
    assert line == expected[0] and what.startswith(expected[1])
    english = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run([BASH, "-n", "-c", text], env=english, capture_output=True, timeout=20, check=False)
    assert done.returncode and f"line {line}: syntax error" in done.stderr.decode()


def test_behind_an_exit_nothing_is_read() -> None:
    assert [one.name for one in read("run 1\nexit 0\nrun 2").commands] == ["run", "exit"]
    done = read("run 1 || exit 1\nrun 2").commands
    assert [(one.name, one.is_sure) for one in done] == [("run", True), ("exit", False), ("run", True)]


def test_a_pattern_of_files_is_not_known_unless_it_is_quoted() -> None:
    words = read("D=/d; P='a*'; run $D/*_text '*' \"$P\" \\? a[ $P ${U}* --x='*' `ls *`").commands[-1].words
    assert [*words[1:]] == [
        *("$(echo /d/*_text)", "*", "a*", "?", "a[", "$(echo a*)", "$(echo ${U}*)", "--x=*", "`ls *`")
    ]


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


WORDS = ["1", "x", "'y z'", '"$A"', "$B", "${A}q", "${B:-d}", '"${A} $B"', "$((N+1))", "$1", '"$*"', "$(echo $N)"]
ASSIGNMENTS = ["A=1", "B=$C", 'A="$A $B"', "C=${B}k", "B+=2", "N=$((N+1))", "L+=(7 $A)", "C=${L[0]}", "export A=4"]
ASSIGNMENTS += ["B=7 true", "A=$1$#", "eval B=\\$A", "set -- $A z", "M=(${L[@]} $N)"]
TESTS = ['[ "$A" = x ]', "[[ $B == x* && $N -lt 4 ]]", "((N%2))", "[[ -n $A || $C == 1 ]]", "! [[ $A == $B ]]", "false"]


def statement(random: Random, depth: int = 0) -> str:
    """Return a statement; the script alone decides it, but for loops and `f`, a function."""

    def body() -> str:
        return "; ".join(statement(random, depth + 1) for _ in range(random.randint(1, 3)))

    test, word, assignment = random.choice(TESTS), random.choice(WORDS), random.choice(ASSIGNMENTS)
    forms = [
        lambda: assignment,
        lambda: f"{test} && {assignment} || {random.choice(ASSIGNMENTS)}",
        lambda: f"if {test}; then {body()}; elif {random.choice(TESTS)}; then {body()}; else {body()}; fi",
        lambda: f"( {body()} )",
        lambda: f"{{ {body()}; }} | cat",
        lambda: f"case {word} in 1|x) {body()} ;; y*) {body()} ;; *) {body()} ;; esac",
        lambda: f"f {word} {random.choice(WORDS)}",
        lambda: f"for I in {word} 3; do {body()}; {test} && {random.choice(['break', 'continue'])}; {assignment}; done",
    ]
    return random.choice(forms if depth < 2 else forms[:2])()


def test_of_random_programs_what_is_known_is_what_bash_has(tmp_path: Path) -> None:
    start = "A=1; B=x; C='u v'; N=1; L=(0); set -- s 't w'; f() { A=$1; [[ $B == x* ]] && return; B=x; A=1; }"
    end = 'show "$A" "$B" "$C" "$N" "${L[@]}" $A $# "$@"'
    programs = [
        "\n".join([start, *(statement(Random(4 * seed + part)) for part in range(4)), end]) for seed in range(40)
    ]
    shown = 'show() { printf "%s\\0" "$@"; }\n' + "".join(f"(\n{one}\n)\nprintf '\\1\\0'\n" for one in programs)
    (tmp_path / "programs.sh").write_text(shown)
    done = subprocess.run([BASH, "programs.sh"], capture_output=True, timeout=60, check=True, cwd=tmp_path)
    known = 0
    for text, words in zip(programs, done.stdout.decode().split("\1\0")[:-1], strict=True):
        ours = words_by_us(text)
        if not any("$" in word for word in ours):
            assert "\0".join([*ours, ""]) == words, text
        for mine, theirs in zip(ours[:4], words.split("\0")[:4], strict=True):
            known += "$" not in mine
            assert "$" in mine or mine == theirs, text
    assert known > 10
