# The commands of the project; each one sets up what it needs (scripts/setup.sh) and is quick when nothing changed.
.PHONY: demo test lint gpu-check bench soak

demo:
	@scripts/demo.sh

test:
	@scripts/test.sh

lint:
	@scripts/build.sh quaver_python && scripts/lint.sh

gpu-check:
	@scripts/setup.sh && scripts/gpu_check.sh

bench:
	@scripts/build.sh quaver_python && .venv/bin/quaver bench attention --suite decode

soak:
	@scripts/build.sh quaver_python && scripts/model.sh && .venv/bin/python scripts/soak.py --model models/gemma-3-270m --out bench/results/cpu/soak.json
