#!/bin/sh
# Second retrievers: negatives mined by the first retriever, starting again from the pre-trained encoder (Zhou 2023, Tables 6 and 8; Long 2022,
# Tables 1 and 3; Wu 2023, Tables 1, 3 and 4).
#
#   just reproduce second [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# First run the same rows of simlm.sh, master.sh, rom.sh or query-as-context.sh; rows without a first retriever are skipped.
# full: about 3 hours of an H200 per row, estimated.
. "$(dirname "$0")/common.sh"
pool=$corpus default_policy=$policy more=""
if [ "$scale" = mini ]; then pool=$data/pool.jsonl more=--skip-corpus-check; fi # without the passages of test questions
for seed in $seeds; do
  for row in simlm master without-cpr without-rpr without-por shared-decoder master-rates-15-50 master-rates-50-50 master-rates-30-30 master-rates-30-70 \
    rom rom-deepimpact corom cocondenser qac-cocondenser qac-cocondenser-mixed cotmae qac-cotmae qac-cotmae-mixed \
    qac-cocondenser-queries-1 qac-cocondenser-queries-10 qac-cocondenser-queries-20 qac-cotmae-queries-1 qac-cotmae-queries-10 qac-cotmae-queries-20; do
    policy=$default_policy
    case $row in
      simlm) first=simlm preset=simlm-r2 ;;
      *rom*) first=rom preset=rom-ft policy=tevatron ;;
      *cocondenser* | *cotmae*) first=query-as-context preset=qac-r2 policy=tevatron ;;
      *) first=master preset=simlm-r2 ;;
    esac
    is_selected "$row" || continue
    retriever=$out/$first/$row.$seed.retriever examples=$work/$row.$seed.train.jsonl
    [ -e "$retriever" ] || { echo "second.sh: no $retriever; run \`just reproduce $first\` first" >&2 && continue; }
    if [ ! "$examples" -nt "$retriever" ]; then
      drtk encode "$pool" --model "$retriever" -o "$work/first.vectors" $again
      drtk index "$work/first.vectors" --type "$index_type" -o "$work/first.index" $made
      mine "$work/first.index" --corpus "$pool"
      rm -r "$work/first.vectors" "$work/first.index"
    fi
    tune "$row" "$out/encoders/$row.$seed" "$preset" $more
  done
done
compare_rows simlm
