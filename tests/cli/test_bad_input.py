"""Bad command lines: one clear line, a non-zero exit, no traceback, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism.cli import main

# {m}: tiny models, {f}: good and bad files, {o}: a folder that does not exist yet. After the bar: what the line must say.
EVALUATE = "evaluate sudoku --model {m}/sudoku --puzzles {f}/puzzles.txt"
SAMPLE = "sample --model {m}/sudoku"
LEARN = "pretrain --output {o} --hidden_size 16 --layers 1 --heads 2 --held_out 2 --batch 2 --steps 1"
PRETRAIN = f"{LEARN} --boards 8"
TOKENIZE = "tokenize --output {o} --workers 1 --tokenizer {f}/words"
TUNE = "finetune --model {m}/plain --output {o} --held_out 2 --batch 2 --steps 1"
FINETUNE = f"{TUNE} --boards 8"

LINES = f"""
evalute | unknown command 'evalute' (did you mean 'evaluate'?)
smaple | did you mean 'sample'
--polcy prism | unknown command
evaluate chess | unknown task of prism evaluate 'chess'
evaluate sudok | did you mean 'sudoku'
compare owt | unknown task
evaluate --model x | unknown task
reprodce | did you mean 'reproduce'
reproduce chess | unknown task
reproduce owt --scale huge | choose from paper, tiny
reproduce owt --scale tiny --batch 0 | --batch 0: must lie in 1..32
reproduce owt --scale tiny --batch 33 | the paper may mean 16 or 256
reproduce owt --scale tiny --mauve false --checkpoint {{f}}/nowhere | There is no folder
reproduce owt --scale tiny --mauve false --checkpoint {{m}}/plain --tokenizer {{f}} | There is no tokenizer
reproduce owt --scale tiny --mauve false --checkpoint {{m}}/plain --tokenizer {{f}}/words --judge {{m}}/plain | cannot be loaded
reproduce owt --results {{f}}/empty.txt | that is a file
reproduce sudoku --scale huge | choose from paper, small, tiny
reproduce sudoku --only methods_50 | did you mean 'methods_51'
reproduce sudoku --puzzles nowhere.csv | nowhere.csv
reproduce sudoku --output {{f}}/empty.txt | that is a file
reproduce sudoku --results {{f}}/empty.txt | that is a file
reproduce functions | arguments are required: --data
reproduce known-truth | arguments are required: --truth
reproduce wikipedia | arguments are required: --data, --base, --judge
reproduce known-truth --truth nowhere.bin | nowhere.bin cannot be read
evaluate text --texts nowhere.jsonl | nowhere.jsonl: no such file
evaluate calibration --model {{m}}/plain | has no quality head to ask
score --model {{m}}/plain --text 53 | has no quality head to ask
score --model {{m}}/sudoku --file {{f}}/bytes.txt | not text in UTF-8
sample --model {{m}}/words --length 12 --block 4 --k 2 | take --k 1 or less
evaluate calibration --model {{m}}/words --samples 0 | --samples 0: must be at least 1
evaluate calibration --model {{m}}/words --steps 1 | take at least 2
evaluate calibration --model {{m}}/words --plot {{f}}/curve.txt | ends with .svg, .png or .pdf
evaluate calibration --model {{m}}/words --data nowhere.npy | no such file
evaluate calibration --model {{m}}/words --data {{f}}/large.npy | the model knows 0..6
evaluate calibration --model {{m}}/words --data {{f}}/rows.npy --length 8 | sequences of 12 tokens, not 8
reproduce functions --data {{o}} | There is no folder
reproduce functions --data {{f}} | manifest.json
reproduce functions --data {{f}} --scale paper | choose from full, small, tiny
functions --output {{o}} | --packages
functions --output {{o}} --packages nowhere | nowhere: no such file or folder
functions --output {{o}} --packages {{f}}/empty.txt | no package in what was given
functions --output {{o}} --packages {{f}} --longest 0 | must both be at least 1
functions --output {{f}}/empty.txt --packages {{f}} | that is a file
functions --output {{o}} --tokenizer {{f}}/words | There is no folder
functions --output {{o}} --tokenizer {{f}}/words --vocabulary 400 | give either, not both
functions --output {{o}} --packages {{f}} --vocabulary 8 | take 258 or more
{PRETRAIN} --ends true | only text has ends
{EVALUATE} --stpes 3 | did you mean '--steps'
{EVALUATE} --polcy prism | did you mean '--policy'
{EVALUATE} --sed 3 | did you mean '--seed'
{EVALUATE} --puzzle x | did you mean '--puzzles'
{EVALUATE} --frobnicate | --frobnicate is not an option of prism evaluate sudoku
{EVALUATE} --k-blocks 3 | did you mean '--k_block'
{EVALUATE} --nuclues .9 | did you mean '--nucleus'
{EVALUATE} leftover | leftover
{EVALUATE} --steps x | --steps
{EVALUATE} --steps 1.5 | --steps
{EVALUATE} --steps | --steps
{EVALUATE} --steps 0 | steps=0
{EVALUATE} --steps -3 | steps=-3
{EVALUATE} --k x | --k
{EVALUATE} --k -1 | K=-1
{EVALUATE} --k 52 | --k 52 is more than the 51 positions
{EVALUATE} --k 1000000 | more than the 51
{EVALUATE} --k_block 52 | more than the 51
{EVALUATE} --k 3 --eta .1 | give one of them
{EVALUATE} --k 3 --k_block 2 | give one of them
{EVALUATE} --eta 1.5 | eta=1.5
{EVALUATE} --eta -.1 | eta=-0.1
{EVALUATE} --eta x | --eta
{EVALUATE} --cap true | --cap limits --eta
{EVALUATE} --cap maybe --eta .1 | --cap
{EVALUATE} --on 2 | on and off
{EVALUATE} --on -1 | on and off
{EVALUATE} --on .6 --off .4 | on and off
{EVALUATE} --off 1.01 | on and off
{EVALUATE} --policy prsim | did you mean 'prism'
{EVALUATE} --policy PRISM | Unknown policy 'PRISM'
{EVALUATE} --policy remdm | Unknown policy 'remdm'
{EVALUATE} --policy | --policy
{EVALUATE} --policy "" | Unknown policy
{EVALUATE} --order rnadom | did you mean 'random'
{EVALUATE} --order left | Unknown order
{EVALUATE} --policy rdm --order margin | the policy 'rdm' does not use it
{EVALUATE} --policy rcr --k 3 | does not use it
{EVALUATE} --policy vanilla --k 3 | --k: the policy 'vanilla' does not use it
{EVALUATE} --policy vanilla --on .5 | --on
{EVALUATE} --policy remdm-cap --k 3 | does not use it
{EVALUATE} --policy remdm-cap --on .5 --off .6 | --on, --off
{EVALUATE} --policy remdm-conf --eta .3 | does not use it
{EVALUATE} --policy threshold --order margin | does not use it
{EVALUATE} --policy remdm-cap --threshold .9 | --threshold: the policy 'remdm-cap' does not use it
sample --recorded true | steps are recorded on a GPU only
sample --recorded true --cache prefix | no two steps are alike
sample --recorded true --watch true | recorded steps cannot be watched
{EVALUATE} --revisit 2 | without blocks there are no earlier ones
{EVALUATE} --block 9 --revisit 0 | --revisit 0: at least 1 token
{EVALUATE} --block 9 --revisit 2 --policy vanilla | the policy 'vanilla' scores no tokens
{EVALUATE} --threshold 0 | --threshold 0.0: a probability above 0
{EVALUATE} --k_block 3 --on .5 | --on: --k_block has its place in the block
{EVALUATE} --k_block 12 --block 4 | --k_block 12: 4 steps on a block of 4 positions leave room to take back 2
{EVALUATE} --policy dream-entropy --eta .3 | does not use it
{EVALUATE} --temperature -1 | temperature=-1.0
{EVALUATE} --temperature hot | --temperature
{EVALUATE} --temperature nan | --temperature
{EVALUATE} --top_k 0 | top_k=0
{EVALUATE} --top_k -5 | top_k=-5
{EVALUATE} --top_k many | --top_k
{EVALUATE} --nucleus 1.1 | nucleus=1.1
{EVALUATE} --nucleus -.1 | nucleus=-0.1
{EVALUATE} --nucleus x | --nucleus
{EVALUATE} --keep_crossing 7 | --keep_crossing
{EVALUATE} --schedule lienar | did you mean 'linear'
{EVALUATE} --schedule sqrt | Unknown schedule
{EVALUATE} --policy threshold --schedule cosine | --schedule: the policy 'threshold' does not use it
{EVALUATE} --policy remdm-loop --schedule linear | does not use it
{EVALUATE} --seed x | --seed
{EVALUATE} --seed 1.5 | --seed
{EVALUATE} --limit 0 | --limit 0
{EVALUATE} --limit -2 | --limit -2
{EVALUATE} --limit x | --limit
{EVALUATE} --batch 0 | --batch 0
{EVALUATE} --batch -1 | --batch -1
{EVALUATE} --batch x | --batch
{EVALUATE} --device tpu9 | --device tpu9: this machine has no such device
{EVALUATE} --device cuda:99 | no such device
{EVALUATE} --device mps | no such device
{EVALUATE} --steps 100000000 | at most 1,000,000
{EVALUATE} --steps 100000000 --k_block 3 | at most 1,000,000
{EVALUATE} --block 0 | block=0
{EVALUATE} --block 1 --steps 50 | blocks of 1
{EVALUATE} --k 1e3 | --k: expected int, got '1000.0'
{EVALUATE} --on x | --on: expected float, got 'x'
{EVALUATE} --config {{f}}/bytes.txt | --config: that is not a YAML file
{EVALUATE} --config {{f}} | --config
{EVALUATE} --device "" | --device
{EVALUATE} --dtype int8 | --dtype int8
{EVALUATE} --dtype float99 | --dtype float99
{EVALUATE} --json {{f}} | that is a folder
{EVALUATE} --json {{f}}/no/such/out.json | cannot write into
{EVALUATE} --json /proc/out.json | /proc
{EVALUATE} --config {{f}}/missing.yaml | missing.yaml
{EVALUATE} --config {{f}}/bad.yaml | config
{EVALUATE} --config {{f}}/unknown.yaml | stpes
evaluate sudoku --model {{m}}/sudoku --puzzles {{f}}/missing.txt | missing.txt
evaluate sudoku --model {{m}}/sudoku --puzzles {{f}}/short.txt | line 2
evaluate sudoku --model {{m}}/sudoku --puzzles {{f}}/letter.txt | line 1
evaluate sudoku --model {{m}}/sudoku --puzzles {{f}}/clash.txt | two 5s
evaluate sudoku --model {{m}}/sudoku --puzzles {{f}}/empty.txt | empty.txt
evaluate sudoku --model {{m}}/sudoku --puzzles {{f}}/bytes.txt | bytes.txt
evaluate sudoku --model {{m}}/sudoku --puzzles {{f}} | {{f}}
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{m}}/nothing | nothing
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{f}} | config.json
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{m}}/broken | model.safetensors
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{m}}/plain | needs a quality head
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{m}}/words | A Sudoku model has vocabulary 11
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{m}}/sudoku --mask_id 11 | mask_id=11
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{m}}/sudoku --mask_id -1 | mask_id=-1
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{m}}/sudoku --mask_id x | --mask_id
compare sudoku --model {{m}}/sudoku --puzzles {{f}}/puzzles.txt --policies vanilla,,prism | Unknown policy ''
compare sudoku --model {{m}}/sudoku --puzzles {{f}}/puzzles.txt --policies vanilla,prsim | did you mean 'prism'
compare sudoku --model {{m}}/sudoku --puzzles {{f}}/puzzles.txt --policies [] | Unknown policy '[]'
compare sudoku --model {{m}}/sudoku --puzzles {{f}}/puzzles.txt --k 60 | more than the 51
compare sudoku --model {{m}}/sudoku --puzzles {{f}}/puzzles.txt --steps 0 | steps=0
compare sudoku --model {{m}}/sudoku --puzzles {{f}}/puzzles.txt --order best | Unknown order
compare sudoku --model {{m}}/plain --puzzles {{f}}/puzzles.txt --steps 2 | needs a quality head
compare sudoku --model {{m}}/plain --corrector {{m}}/sudoku --puzzles {{f}}/puzzles.txt --policies vanilla,random | no quality
compare sudoku --model {{m}}/sudoku --puzzles {{f}}/missing.txt | missing.txt
compare sudoku --model {{m}}/sudoku --policy vanilla | policies to compare are named with --policies
compare sudoku --model {{m}}/sudoku --policies "prism, vanilla,prism" | prism is named twice
compare sudoku --model {{m}}/sudoku --puzzle x | did you mean
{SAMPLE} --count 0 | --count 0
{SAMPLE} --count -2 | --count -2
{SAMPLE} --count x | --count
{SAMPLE} --steps 0 | --steps 0: take at least 1 forward pass
{SAMPLE} --prompt 53 | 81
{SAMPLE} --prompt "{"1" * 81}" | row 1
{SAMPLE} --prompt "{"x" * 81}" | 'x'
{SAMPLE} --block 0 | --block 0: at least 1 position
{SAMPLE} --block -4 | --block -4
{SAMPLE} --block 9 --steps 3 | blocks of 9
{SAMPLE} --policy nope | Unknown policy
{SAMPLE} --length 10 | leave them out
{SAMPLE} --count 100000000000 | not enough memory
{SAMPLE} --new_tokens 10 | leave them out
{SAMPLE} --chat true --prompt hi | no tokenizer
{SAMPLE} --chat true | --prompt
{SAMPLE} --chat | --chat: say --chat true
{SAMPLE} --prompt hi --chat --count 2 | --chat: say --chat true
{PRETRAIN} --resume | --resume: say --resume true
{SAMPLE} --system be | give --chat true too
{SAMPLE} --stop a | leave them out
{SAMPLE} --eos keep | leave them out
{SAMPLE} --eos never | choose from stop, keep
{SAMPLE} --min_tokens 3 | --min_tokens 3: this tokenizer names no token that ends a text
{SAMPLE} --min_tokens -3 | --min_tokens -3: must be 0 or more
{SAMPLE} --cache dual | This model keeps no cache; of all models only LLaDA, Dream
{SAMPLE} --cache both | choose from prefix, dual
{SAMPLE} --refresh 4 | give --cache
{SAMPLE} --batch 0 | --batch 0
{SAMPLE} --lenght 3 | did you mean '--length'
{SAMPLE} --k 82 | more than the 81
sample --model {{m}}/words --length 3 --prompt "1 2 3 4" | shorter than the prompt
sample --model {{m}}/words --prompt "1 2 9" | expected an id in 0..6
sample --model {{m}}/words --prompt "one two" | expected an id
sample --model {{m}}/words --prompt "-1" | expected an id
sample --model {{m}}/words --prompt "1 2" --length 2 | nothing to generate
sample --model {{m}}/words --length 0 | --length
sample --model {{m}}/words --new_tokens 0 | --new_tokens 0
sample --model {{m}}/words --new_tokens 3 --length 9 | give one of them
sample --model {{m}}/words --length x | --length
sample --model {{m}}/plain | needs a quality head
sample --model {{m}}/plain --corrector {{m}}/plain | plain: The judge has no quality head
sample --model {{m}}/plain --corrector {{m}}/words | must share a vocabulary
sample --model {{m}}/plain --corrector {{m}}/nothing | nothing
sample --model {{m}}/plain --corrector "" | --corrector
sample --model {{m}}/plain --corrector {{m}}/sudoku --policy vanilla | asks for no quality
sample --model {{m}}/plain --corrector {{m}}/sudoku --cache dual | do not go together
evaluate sudoku --puzzles {{f}}/puzzles.txt --model {{m}}/plain --corrector {{m}}/words | must share a vocabulary
sample --model {{m}}/nothing | nothing
sample --model {{m}}/plain --backbone {{m}}/plain | plain is no corrector
sample --model {{m}}/sudoku --backbone {{m}}/plain/nowhere | There is no folder
sample --model "" | model
sample --model no/such/model/anywhere | no/such/model/anywhere
sample --model bad:name | bad:name
score --model {{m}}/sudoku | --text or with --file
score --model {{m}}/sudoku --text 12 --file {{f}}/puzzles.txt | one of them
score --model {{m}}/sudoku --file {{f}}/missing.txt | no such file
score --model {{m}}/sudoku --file {{f}} | no such file
score --model {{m}}/sudoku --text "" | nothing to score
score --model {{m}}/sudoku --text "   " | nothing to score
score --model {{m}}/sudoku --text 123 | 81
score --model {{m}}/sudoku --file {{f}}/bytes.txt | prism
score --model {{m}}/words --text "1 2 7" | expected an id in 0..6
score --model {{m}}/words --text "a b" | expected an id
score --model {{m}}/plain --text {"." * 81} | no quality head
score --model {{m}}/broken --text {"." * 81} | model.safetensors
score --modle x | did you mean '--model'
score --text 1 --model {{m}}/sudoku --json {{f}} | that is a folder
{PRETRAIN} --steps 0 | steps=0
{PRETRAIN} --steps x | --steps
{PRETRAIN} --batch 0 | batch=0
{PRETRAIN} --batch -4 | batch=-4
{PRETRAIN} --accumulate 0 | accumulate=0
{PRETRAIN} --accumulate 3 | accumulate
{PRETRAIN} --lr 0 | lr=0
{PRETRAIN} --lr -1 | lr=-1
{PRETRAIN} --lr fast | --lr
{PRETRAIN} --clip 0 | clip=0
{PRETRAIN} --warmup 5 | warmup=5
{PRETRAIN} --warmup -1 | warmup=-1
{PRETRAIN} --rate cosinus | did you mean 'cosine'
{PRETRAIN} --ema 1 | ema=1
{PRETRAIN} --ema -.5 | ema=-0.5
{PRETRAIN} --precision fp8 | Unknown precision
{PRETRAIN} --compile perhaps | --compile
{PRETRAIN} --seed x | --seed
{PRETRAIN} --log_every 0 | log_every=0
{PRETRAIN} --evaluate_every 0 | evaluate_every=0
{PRETRAIN} --checkpoint_every 0 | checkpoint_every=0
{PRETRAIN} --keep 0 | keep=0
{PRETRAIN} --masking sometimes | Unknown masking
{PRETRAIN} --weighting heavy | Unknown weighting
{PRETRAIN} --hidden_size 15 | hidden_size=15
{PRETRAIN} --hidden_size 0 | hidden_size
{PRETRAIN} --heads 0 | heads
{PRETRAIN} --heads 3 | multiple of
{PRETRAIN} --layers x | --layers
{PRETRAIN} --layers 0 | blocks=0
{PRETRAIN} --dropout 1 | dropout=1
{PRETRAIN} --boards 0 | --boards 0
{PRETRAIN} --boards x | --boards
{PRETRAIN} --held_out 0 | --held_out 0
{PRETRAIN} --held_out -1 | --held_out -1
{PRETRAIN} --trackers [mlflow] | mlflow
{LEARN} --data {{f}}/missing.npy | missing.npy
{LEARN} --data {{f}}/floats.npy | expected integers
{LEARN} --data {{f}}/flat.npy | expected integers of shape
{LEARN} --data {{f}}/none.npy | empty
{LEARN} --data {{f}}/text.npy | not a .npy array
{LEARN} --data {{f}}/good.jsonl | of text, make a folder with prism tokenize first and name that
{LEARN} --data {{f}}/cut.npy | repeat the prism corpus that began it
{LEARN} --data {{f}}/begun.npy | repeat the prism corpus that began it
{LEARN} --data {{f}}/objects.npy | not a .npy array of numbers
evaluate calibration --model {{m}}/words --data {{f}} | a folder, and not of prism tokenize
{LEARN} --data {{f}}/rows.npy --vocab_size 3 | 0..2
{LEARN} --data {{f}}/rows.npy --held_out 40 | leaves none
{LEARN} --data {{f}}/rows.npy --length 6 | --length 6: a row of {{f}}/rows.npy has 12 tokens
{PRETRAIN} --length 81 | --length 81: a board has 89 tokens; give --length 89
{PRETRAIN} --head_lr 1e-3 | --head_lr is not an option of prism pretrain
adapt --model {{m}}/nothing --data {{f}}/rows.npy --output {{o}} --boards 8 | --boards is not an option of prism adapt
{PRETRAIN} --resmue true | did you mean '--resume'
{PRETRAIN} --output | --output
pretrain --steps 1 | output
pretrain --output {{f}}/empty.txt | that is a file
{FINETUNE} --compile | --compile: say --compile true
{FINETUNE} --head big | Unknown head
{FINETUNE} --head none | --head none
{FINETUNE} --k 0 | k=0
{FINETUNE} --ys 0 | ys=0
{FINETUNE} --regulariser -1 | regulariser=-1
{FINETUNE} --choose best | Unknown rule
{FINETUNE} --target truth | Unknown target
{FINETUNE} --temperature -1 | temperature=-1
{FINETUNE} --nucleus 2 | nucleus=2
{FINETUNE} --lora_rank 0 | rank=0
{FINETUNE} --lora_rank 2 --lora_dropout 1 | dropout=1
{FINETUNE} --lora_rank 2 --lora_targets [nothing] | nothing
{FINETUNE} --head block --head_heads 5 | 5
{TUNE} --data {{f}}/large.npy | 0..10
{FINETUNE} --tune_backbone perhaps | --tune_backbone
{FINETUNE} --steps -1 | steps=-1
{LEARN} --data {{f}} | has no manifest.json
{TOKENIZE} | --input or with --dataset
{TOKENIZE} --input {{f}}/good.jsonl --dataset x | one of them
{TOKENIZE} --input | --input
{TOKENIZE} --input {{f}}/missing.jsonl | missing.jsonl: no such file
{TOKENIZE} --input {{f}}/good.jsonl {{f}}/missing.jsonl | missing.jsonl: no such file
{TOKENIZE} --input {{f}} | no such file
{TOKENIZE} --input {{f}}/good.jsonl --field body | no text under 'body'; name another field: text
{TOKENIZE} --input {{f}}/bytes.txt | bytes.txt is not UTF-8
{TOKENIZE} --input {{f}}/none.jsonl | no document
{TOKENIZE} --input {{f}}/good.jsonl --validation 1 | validation=1
{TOKENIZE} --input {{f}}/good.jsonl --validation half | --validation
{TOKENIZE} --input {{f}}/good.jsonl --shard_tokens 0 | shard_tokens=0
{TOKENIZE} --input {{f}}/good.jsonl --workers 0 | workers=0
{TOKENIZE} --input {{f}}/good.jsonl --tokenizer {{f}} | There is no tokenizer
{TOKENIZE} --input {{f}}/good.jsonl --tokenzer x | did you mean '--tokenizer'
{TOKENIZE} --input {{f}}/good.jsonl --output {{f}}/empty.txt | that is a file
{TOKENIZE} --input {{f}}/good.jsonl --output {{f}} | not empty
tokenize --output {{o}} --input x | tokenizer
finetune --output {{o}} | model
finetune --model {{m}}/nothing --output {{o}} | nothing
finetune --model {{m}}/nothing --output {{f}}/begun | begun/training is not empty; to go on with the run in it
finetune --model {{m}}/nothing --output {{o}} --trackers mlflow | There is no tracker 'mlflow'; choose tensorboard or wandb
finetune --model {{m}}/nothing --output {{o}} --batch 6 --accumulate 4 | batch=6 must be a multiple of 1 processes · acc
{LEARN} --data {{f}}/rows.npy --boards 8 | --boards and --augment are of --data sudoku
{TUNE} --data {{f}}/good.jsonl --augment false | --boards and --augment are of --data sudoku
{TUNE} --dataset x --boards 8 | --boards and --augment are of --data sudoku
{TUNE} --dataset x --data {{f}}/good.jsonl | two things to learn from; give one of them
{TUNE} --data {{f}}/good.jsonl --dataset_split test | --dataset_config and --dataset_split are of a --dataset
{TUNE} --dataset_config x | --dataset_config and --dataset_split are of a --dataset
{TUNE} --data {{f}}/puzzles.txt | puzzles.txt: neither JSON lines nor a .npy array; to learn conversations name JSON lines
{TUNE} --data {{f}}/missing.csv | missing.csv: no such file; to learn conversations name JSON lines
{TUNE} --data {{f}}/list.json | list.json, line 1 begins a list; expected an object on every line
finetune --model {{m}}/words --output {{o}} | words has vocabulary 7 and mask 6; say what to learn from: --data chat.jsonl
finetune --recipe llada --model {{m}}/nothing --output {{o}} | --recipe llada learns text and --data sudoku makes boards; say
finetune --model {{m}}/broken --output {{o}} | model.safetensors
cite --policy nope | Unknown policy
cite --polcy x | did you mean '--policy'
cite --order nope | Unknown order
demo --puzzle 53 --model {{m}}/sudoku | 81
demo --puzzle {"1" * 81} --model {{m}}/sudoku | contradict
demo --puzzle {"." * 80 + "x"} --model {{m}}/sudoku | --puzzle: character 81 is 'x'
demo --puzzle {"123456789456789123789123456231564897564897231897231564312645978645978312978312645"} | nothing to solve
demo --puzzle {"12345678." + "........9" + "." * 63} --model {{m}}/sudoku | no solution
demo --count 0 --model {{m}}/sudoku | --count 0
demo --tally -1 --model {{m}}/sudoku | --tally -1
demo --clues 16 --model {{m}}/sudoku | 16
demo --clues 82 --model {{m}}/sudoku | 82
demo --k -1 --model {{m}}/sudoku | K=-1
demo --steps 0 --model {{m}}/sudoku | --steps 0
demo --pace -1 --model {{m}}/sudoku | --pace -1
demo --gif {{f}}/no/such/out.gif --model {{m}}/sudoku | --gif {{f}}/no/such/out.gif: cannot write into {{f}}/no/such
demo --gif {{f}} --model {{m}}/sudoku | that is a folder
demo --gif {{f}}/out.png --model {{m}}/sudoku | the name must end in .gif
demo --gif {{f}}/out --model {{m}}/sudoku | the name must end in .gif
demo --gif /proc/out.gif --model {{m}}/sudoku | /proc
demo --html {{f}}/no/such/out.html --model {{m}}/sudoku | --html {{f}}/no/such/out.html: cannot write into {{f}}/no/such
demo --html {{f}} --model {{m}}/sudoku | that is a folder
demo --html {{f}}/out.gif --model {{m}}/sudoku | the name must end in .html
demo --model {{m}}/plain | needs a quality head
demo --model {{m}}/words | vocabulary 11
demo --model {{m}}/nothing | nothing
""".strip("\n").split("\n")


def words(line: str, **paths: Path) -> list[str]:
    import shlex

    return [word.format(m=paths["models"], f=paths["files"], o=paths["out"]) for word in shlex.split(line)]


def test_there_are_two_hundred() -> None:
    assert len(LINES) >= 200


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.partition(" | ")[0].replace("/", "_")[-60:])
def test_bad_command_line(
    line: str, models: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _, expected = line.partition(" | ")
    out = tmp_path / "out"
    before = sorted(files.rglob("*"))
    code = main(words(command, models=models, files=files, out=out))
    error = capsys.readouterr().err.strip()
    assert code in (1, 2), error
    assert error.startswith("prism: ")
    assert "\n" not in error
    assert "Traceback" not in error
    assert "(a bug?" not in error, error
    assert expected.strip().format(f=files) in error, error
    assert sorted(files.rglob("*")) == before
    assert not out.exists()
