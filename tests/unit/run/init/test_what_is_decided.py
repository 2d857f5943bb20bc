"""Which branch of a script is gone through: as bash goes, and where the script alone does not tell, not decided."""

from __future__ import annotations

import pytest

from opsctl.run.init.launch_command import launches
from opsctl.run.init.launch_script import from_script
from opsctl.run.init.shell_values import why_open
from tests.unit.run.init.test_shell_script import read, words_by_bash, words_by_us


@pytest.mark.parametrize(
    "text",
    [
        "M=gpt-13b-bf16; [[ $M == *\"13b\"* ]] && A=1; [[ $M = *'bf16'* ]] && B=1; [[ $M == *\\b* ]] && C=1; "
        "show $A $B $C",
        "M='a*c'; [[ abc == \"$M\" ]] && A=1; [[ abc == $M ]] && B=1; [[ abc == a'*'c ]] && C=1; "
        "show ${A:-no} $B ${C:-no}",
        "M='*'; case abc in \"*\") A=1 ;; '*'c) A=2 ;; \\*) A=3 ;; a*) A=4 ;; esac; show $A",
        "case 8 in [^0-9]*) A=1 ;; [!0-7]) A=2 ;; esac; [[ a-c == a[b-]c ]] && B=1; [[ 'a]' == a[]] ]] && C=1; "
        "show $A $B $C",
        "V=8nodes; show ${V%%[^0-9]*} ${V##*[0-9]} ${V%n*s} ${V%'*'} ${V#?} ${V%\"s\"}",
        'V="a b c"; show "${V%% *}" "${V##* }" ${V// /_} "${V/b /}" ${V/?b/x}; V=x#y; show "${V%#*}" ${V#*#}',
        'show ${X:-a b} "${X:-c  d}" ${X:-1 2 3}; A=${X:-u v}; show "$A"; show ${X:="7 8"}',
        "N=2; if [ $N -gt 8 ] 2>/dev/null; then A=1; fi; [ $N -gt 8 ] 2>&1 >/dev/null && B=1; "
        "[[ $N == 3 ]] 2>/dev/null || C=1; "
        "show ${A:-no} ${B:-no} $C",
        "if false; then [[ -z ${A:=7} ]]; case ${A:=8} in *) : ;; esac; fi; : ${A:=6}; show $A",
        'E=; [ -n $E ] && A=1; [ -z $E ] && B=1; [ "$E" ] && C=1; [ $E ] && D=1; show $A $B ${C:-no} ${D:-no}',
        "N=2; test $N -gt 8 && A=1; if test $N -lt 8; then B=1; fi; test -n x >/dev/null || C=1; "
        "show ${A:-no} $B ${C:-no}",
        "big() { [ $1 -gt 8 ]; }; big 2 && A=1; big 9 && B=1; if big 3; then C=1; fi; ! big 3 && D=1; "
        "show ${A:-no} $B ${C:-no} $D",
        "f() { if [ $1 = a ]; then return 0; fi; return 1; }; f a && A=1; f b || B=1; f c && C=1; show $A $B ${C:-no}",
        "g() { false; return; }; g && A=1; { false; } || B=1; ( true ) && C=1; echo x >/dev/null && D=1; "
        "show ${A:-no} $B $C $D",
        "A=1; A=2 && B=2 & wait; show $A ${B:-no}",
        "! false | true && A=1; ! true | false && B=1; show ${A:-no} $B",
        "for I in 1 2; do X=$I; for J in a b; do A=$J$I; [ $I = 1 ] && break 2; done; done; show $X $A",
        "for I in 1 2; do for J in a b; do A+=$J$I; [ $J = a ] && continue 2; A=no; done; A=no; done; show $A",
        "N=0; while true; do for J in a b c; do ((N++)); ((N == 5)) && break 9; done; [ $N -gt 8 ] && break; "
        "done; show ok",
        "f() { for I in 1 2; do [ $I = 2 ] && return; A=$I; done; A=no; }; f; show $A",
        "X=$(case a in a) echo 1;; (b) echo 2;; esac); A=1; ( A=$(case b in b) echo 6;; esac) ); show $A",
        "X=1; unset X; Y=; show ${X-a} ${Y-b}c ${X+d} ${Y+e}; [[ -v X ]] && A=1; "
        "show ${X-a} ${Y-b}c ${X+d} ${Y+e} ${A:-no}",
        'L="1 2"; A=(1 2); IFS=,; B="${A[@]}"; unset IFS; show $L "${A[*]}" $B; IFS=" "; show $L "${A[*]}"',
        "if false; then for I in ${A:=7}; do :; done; fi; [[ a == b && -n ${A:=8} ]]; [[ a == a || ${A:=9} ]]; "
        "show ${A:=6}",
    ],
)
def test_what_is_taken_is_what_bash_takes(text: str) -> None:
    assert words_by_us(text) == words_by_bash(text)


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_what_cannot_be_decided_is_not_known(text: str) -> None:
    assert "$" in read(f"A=0\n{text}\nrun $A").commands[-1].words[1].text


def test_what_the_script_asks_for_and_does_not_set_is_taken_to_be_unset_and_said_once() -> None:
    script = read('[ -z "$DEBUG" ] && A=${PORT:-6000}; B=${PORT:-1}; [[ -n ${SLURM_JOB_ID} ]]; show $A ${1:-x}')
    assert [word.text for word in script.commands[-1].words] == ["show", "6000", "x"]
    assert list(script.values.taken_unset) == ["DEBUG", "PORT"]


def test_an_array_has_a_value_where_its_default_is_asked_for() -> None:
    text = 'L=(1 2); B=$HOME/x; [ -n "${NOT_SET_HERE}x" ] && A=3; [ -z "$B" ] || C=4; show ${L:-9} $A $C ${B:+5}'
    assert words_by_us(text) == words_by_bash(text)


def test_what_is_taken_to_be_unset_is_listed() -> None:
    script = "#SBATCH --nodes=1 --gres=gpu:1 --time=1:00:00\nif [ -z $DEBUG ]; then LR=${RATE:-1}; fi\n"
    script += "python pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 2 --lr $LR --seq-length 8\n"
    begun = from_script(f"#!/bin/bash\n{script}", "mine", "/here", {}, lambda _: None)
    assert begun.value("trainer", "lr") == 1
    assert len([note for note in begun.notes if note.text.endswith("DEBUG, RATE")]) == 1


def test_a_return_where_no_function_is_changes_nothing() -> None:
    assert [one.name for one in read("for I in 1; do [ -f /x ] && return; done\nrun").commands][-1] == "run"


def test_a_function_that_is_handed_a_trainings_words_is_no_training_itself() -> None:
    options = "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --lr"
    text = f'log() {{ echo "$@"; }}\npython pretrain_gpt.py {options} 6e-5\nlog ran: pretrain_gpt.py {options} 1\n'
    assert [one.words[-1].text for one in launches(read(text))] == ["6e-5"]
    text = f'go() {{ srun "$@" --seed 2; }}\ngo python pretrain_gpt.py {options} 6e-5\n'
    assert [one.words[-1].text for one in launches(read(text))] == ["2"]


def test_a_pattern_of_files_is_not_known_unless_it_stands_in_quotes() -> None:
    words = (
        read("D=/d; P='a*'; run $D/*_text \"$D\"/x[12] '*' \"$P\" \\? a[ $P ${U}* --x='*' ${L[0]} `ls *`")
        .commands[-1]
        .words
    )
    texts = [word.text for word in words[1:]]
    assert texts[:2] == ["$(ls -d /d/*_text)", "$(ls -d /d/x[12])"]
    assert texts[2:] == ["*", "a*", "?", "a[", "$(ls -d a*)", "$(ls -d ${U}*)", "--x=*", "${L[0]}", "`ls *`"]
    assert why_open(texts[0]) != why_open("$(date)")


def test_of_a_value_that_is_cut_at_something_else_than_blanks_the_reason_is_said() -> None:
    why = read("L=1,2; IFS=,; set -- $L").values.why_unknown("L")
    assert why.startswith("L ") and "IFS" in why


def test_of_a_word_that_is_not_followed_it_is_said_that_it_may_add_options() -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:1 --time=1:00:00\nA=(--lr 1)\n"
    script += (
        "python pretrain_gpt.py ${A[@]/1/2} --num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 8\n"
    )
    begun = from_script(script, "mine", "/here", {}, lambda _: None)
    assert any(note.line == 4 and note.text.startswith("${A[@]/1/2}: ") for note in begun.notes)
