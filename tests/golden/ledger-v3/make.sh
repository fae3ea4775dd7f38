#!/bin/sh
# How this folder was made, with the code of commit 2ff47ea: sh make.sh SRC:TESTS OUT
# SRC is the src of that commit; TESTS has golden.releases, which draws the images.
set -e
export PYTHONPATH=$1 OMP_NUM_THREADS=1 SOURCE_DATE_EPOCH=1767225600 CANAL_KEYS=disk
out=$2
mkdir -p "$out/work" && cd "$out/work"
export CANAL_CACHE=$PWD/cache
python - <<'P'
from pathlib import Path
from golden.releases import SITES, write_images
write_images(Path("queries"), range(6))
for number, site in enumerate(SITES):
    write_images(Path(site), range(10 + 10 * number, 16 + 10 * number))
P
small="--size 32 --channels 1"
canal init --out init $small --base-channels 8 --public-seed 4
for site in north south west; do
  canal teacher train --init init --data $site --out t/$site $small --steps 2 --batch-size 2
done
all="--cohort north --cohort south --cohort west"
canal ledger budget ledger.sqlite $all --unit patient --epsilon 60
canal ledger budget ledger.sqlite $all --unit membership --epsilon 60
canal ledger budget ledger.sqlite $all --unit paper --epsilon 60 --conversion paper
canal ledger budget ledger.sqlite --cohort frozen --unit patient --epsilon 0
canal ledger forbid ledger.sqlite $all --seeded --noiseless
canal ledger allow ledger.sqlite --cohort south --seeded
teachers="--teacher t/north --teacher t/south --teacher t/west --init init --queries queries"
data="--data north --data south --data west --init init --queries queries"
few="--part head --directions 5 --patients 9 --rounds 2 --yes"
canal release create $teachers --ledger ledger.sqlite --out features --released 8 --epsilon 8
# Refused: too dear, and nothing is written.
canal release create $teachers --ledger ledger.sqlite --out refused --epsilon 59 && exit 1
canal release create $teachers --ledger ledger.sqlite --out paper --released 2 --epsilon 8 \
  --preset paper
canal ledger budget ledger.sqlite --cohort queries --unit image --epsilon 90
canal release create $teachers --ledger ledger.sqlite --out images --released 2 --epsilon 40 \
  --unit image --caps-source private --importance-source private --images-per-person 2
canal adapters train $data --ledger ledger.sqlite --out gradients --epsilon 4 $few \
  --count-patients 0.05
canal adapters train $data --ledger ledger.sqlite --out replaced --epsilon 4 $few \
  --relation replace
# Charged, and killed before anything was published.
python - <<'P' || true
import os, sys
from canal.release import workspace
workspace.Workspace.seal = lambda *_: os._exit(9)
sys.argv = ("canal adapters train --data north --data south --data west --init init --queries "
            "queries --ledger ledger.sqlite --out stopped --epsilon 2 --part head --directions 5 "
            "--patients 9 --rounds 2 --yes").split()
from canal.cli import main
main()
P
cp -r features gradients stopped.private ledger.sqlite* ..
canal ledger show ledger.sqlite --json > ../shown.json
python - <<'P' > ../people.json
import json
from pathlib import Path
from canal.adapters.patients import Patients
from canal.data.load import load
people = Patients("west", load(Path("west"), size=32, channels=1)).people
print(json.dumps(sorted(sorted(each) for each in people), indent=1))
P
