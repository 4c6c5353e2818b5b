"""Area `python`: the interface of Python, used as nobody should."""

from __future__ import annotations

from .harness import Trial

HEAD = """\
import os, sys, threading, signal
import paceline
config = paceline.Config(env_id="CartPole-v1", total_iters=3, compile="off", track="none",
                         eval_episodes=2, output_dir="run")
"""
FAILS = 'raise SystemExit("it went through")\n'


def _refused(code: str, errors: str = "paceline.BadInput") -> str:
    """The code must end in one of these errors, with a sentence."""
    body = "".join(f"    {line}\n" for line in code.splitlines())
    return (
        f"{HEAD}try:\n{body}except ({errors},) as error:\n"
        "    assert len(str(error)) > 15, str(error)\n"
        "    print('refused:', str(error)[:300])\n"
        f"else:\n    {FAILS}"
    )


REFUSED = {
    "config unknown": "paceline.Config(flying=True)",
    "config types": "paceline.Config(total_iters='many')",
    "config NaN": "paceline.Config(lr=float('nan'))",
    "config numpy": "paceline.Config(seed=__import__('numpy').array([1, 2]))",
    "config None": "paceline.Config(env_id=None)",
    "config bytes": "paceline.Config(env_id=b'CartPole-v1')",
    "config a class": "paceline.Config(env_id=dict)\nlist(paceline.train(paceline.Config("
    "env_id=dict, total_iters=1)))",
    "config a number": "paceline.Config(env_id=3)",
    "load nothing": "paceline.load('nowhere')",
    "load empty": "paceline.load('')",
    "load a file": "paceline.load(__file__)",
    "load NUL": "paceline.load('a\\0b')",
    "resume nothing": "list(paceline.resume('nowhere'))",
    "resume unknown change": "list(paceline.train(config))\nlist(paceline.resume('run', flying=3))",
    "resume wrong change": "list(paceline.train(config))\n"
    "list(paceline.resume('run', total_iters='x'))",
    "evaluate other spaces": "list(paceline.train(config))\n"
    "paceline.evaluate(paceline.load('run'), 'Pendulum-v1', 1)",
    "evaluate -1": "list(paceline.train(config))\n"
    "paceline.evaluate(paceline.load('run'), 'CartPole-v1', -1)",
    "make_vec 0": "paceline.make_vec('CartPole-v1', 0)",
    "make_vec nothing": "paceline.make_vec('Nothing-v9', 2)",
    "train twice in one folder": "list(paceline.train(config))\nlist(paceline.train(config))",
}
SCRIPTS = {
    # name: (code after the head, exit codes)
    "generator never started": ("r = paceline.train(config)\ndel r\n", (0,)),
    "generator closed at once": ("r = paceline.train(config)\nnext(r)\nr.close()\n", (0,)),
    "generator left to the collector": ("r = paceline.train(config)\nnext(r)\n", (0,)),
    "generator left after a break": (
        "r = paceline.train(config)\nfor _ in r:\n    break\n",
        (0,),
    ),
    "generator left, workers": (
        "r = paceline.train(paceline.Config(env_id='CartPole-v1', num_workers=2, total_iters=50,"
        " compile='off', track='none', output_dir='w'))\nnext(r)\n",
        (0,),
    ),
    "generator left, ranks": (
        "r = paceline.train(paceline.Config(env_id='CartPole-v1', ranks=2, total_iters=50,"
        " compile='off', track='none', output_dir='w'))\nnext(r)\n",
        (0,),
    ),
    "next after the end": (
        "r = paceline.train(config)\nlist(r)\nassert next(r, None) is None\n",
        (0,),
    ),
    "in a thread": (
        "t = threading.Thread(target=lambda: list(paceline.train(config)))\nt.start()\nt.join()\n"
        "assert os.path.exists('run/eval.json')\n",
        (0,),
    ),
    "in two threads at once": (
        "import dataclasses\n"
        "def one(n):\n"
        "    list(paceline.train(config.with_output_dir(f'r{n}')))\n"
        "ts = [threading.Thread(target=one, args=(n,)) for n in range(2)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\n"
        "assert os.path.exists('r0/eval.json') and os.path.exists('r1/eval.json')\n",
        (0,),
    ),
    "in a daemon thread that is left": (
        "threading.Thread(target=lambda: list(paceline.train(config)), daemon=True).start()\n"
        "import time; time.sleep(1.5)\n",
        (0,),
    ),
    "next from another thread": (
        "r = paceline.train(config)\nnext(r)\n"
        "t = threading.Thread(target=lambda: list(r))\nt.start()\nt.join()\n"
        "assert os.path.exists('run/eval.json')\n",
        (0,),
    ),
    "forked before": (
        "import time\nif os.fork() == 0:\n    list(paceline.train(config))\n    os._exit(0)\n"
        "assert os.wait()[1] == 0\nassert os.path.exists('run/eval.json')\n",
        (0,),
    ),
    "forked in the loop": (
        "for r in paceline.train(config):\n"
        "    if os.fork() == 0:\n        os._exit(0)\n    os.wait()\n"
        "assert os.path.exists('run/eval.json')\n",
        (0,),
    ),
    "in multiprocessing": (
        "import multiprocessing as mp\n"
        "def go():\n    list(paceline.train(config))\n"
        "if __name__ == '__main__':\n"
        "    p = mp.get_context('fork').Process(target=go)\n    p.start()\n    p.join()\n"
        "    assert p.exitcode == 0, p.exitcode\n",
        (0,),
    ),
    "in a daemonic process, workers": (
        "import multiprocessing as mp\n"
        "def go():\n    list(paceline.train(paceline.Config(env_id='CartPole-v1', num_workers=2,"
        " total_iters=2, compile='off', track='none', output_dir='w')))\n"
        "if __name__ == '__main__':\n"
        "    p = mp.get_context('fork').Process(target=go, daemon=True)\n    p.start()\n"
        "    p.join()\n    assert p.exitcode == 0, p.exitcode\n",
        (0,),
    ),
    "without a main guard, ranks": (
        "list(paceline.train(paceline.Config(env_id='CartPole-v1', ranks=2, total_iters=2,"
        " compile='off', track='none', output_dir='w')))\n",
        (0,),
    ),
    "two runs interleaved": (
        "import itertools\n"
        "a, b = paceline.train(config), paceline.train(config.with_output_dir('b'))\n"
        "for x, y in itertools.zip_longest(a, b):\n    assert x.loss == y.loss\n",
        (0,),
    ),
    "asyncio": (
        "import asyncio\n"
        "async def go():\n    for r in paceline.train(config):\n        await asyncio.sleep(0)\n"
        "asyncio.run(go())\n",
        (0,),
    ),
    "stdin, stdout, stderr None": (
        "sys.stdin = sys.stdout = sys.stderr = None\nlist(paceline.train(config))\n",
        (0,),
    ),
    "chdir in the loop": (
        "for r in paceline.train(config):\n    os.chdir('/')\n",
        (0,),
    ),
    "default dtype float64": (
        "import torch\ntorch.set_default_dtype(torch.float64)\nlist(paceline.train(config))\n",
        (0,),
    ),
    "grad disabled around": (
        "import torch\nwith torch.no_grad():\n    list(paceline.train(config))\n",
        (0,),
    ),
    "inference mode around": (
        "import torch\nwith torch.inference_mode():\n    list(paceline.train(config))\n",
        (0,),
    ),
    "default device meta": (
        "import torch\nwith torch.device('meta'):\n    list(paceline.train(config))\n",
        (0,),
    ),
    "warnings are errors": (
        "import warnings\nwarnings.simplefilter('error')\nlist(paceline.train(config))\n",
        (0,),
    ),
    "numpy raises": (
        "import numpy\nnumpy.seterr(all='raise')\nlist(paceline.train(config))\n",
        (0,),
    ),
    "SIGCHLD ignored, workers": (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "list(paceline.train(paceline.Config(env_id='CartPole-v1', num_workers=2, total_iters=2,"
        " compile='off', track='none', output_dir='w')))\n",
        (0,),
    ),
    "SIGCHLD ignored, ranks": (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "list(paceline.train(paceline.Config(env_id='CartPole-v1', ranks=2, total_iters=2,"
        " compile='off', track='none', output_dir='w')))\n",
        (0,),
    ),
    "recursion limit 200": (
        "sys.setrecursionlimit(200)\nlist(paceline.train(config))\n",
        (0, 1),
    ),
    "act with nonsense": (
        "list(paceline.train(config))\nagent = paceline.load('run')\n"
        "for obs in (None, 'x', [1, 2], object(), [float('nan')] * 4):\n"
        "    try:\n        agent.act(obs)\n"
        "    except (paceline.PacelineError, ValueError, TypeError) as e:\n"
        "        assert str(e)\n",
        (0,),
    ),
    "pickled agent": (
        "import pickle\nlist(paceline.train(config))\nagent = paceline.load('run')\n"
        "again = pickle.loads(pickle.dumps(agent))\n"
        "import numpy as np\no = np.zeros(4, np.float32)\nassert again.act(o) == agent.act(o)\n",
        (0,),
    ),
    "copied config": (
        "import copy, pickle\nassert copy.deepcopy(config) == config\n"
        "assert pickle.loads(pickle.dumps(config)) == config\n",
        (0,),
    ),
    "a callable that is a lambda, workers": (
        "import gymnasium as gym\n"
        "c = paceline.Config(env_id=lambda: gym.make('CartPole-v1'), num_workers=2, total_iters=2,"
        " compile='off', track='none', output_dir='w')\nlist(paceline.train(c))\n",
        (0,),
    ),
    "a callable that holds a lock, workers": (
        "import gymnasium as gym\nlock = threading.Lock()\n"
        "def make():\n    with lock:\n        return gym.make('CartPole-v1')\n"
        "c = paceline.Config(env_id=make, num_workers=2, total_iters=2,"
        " compile='off', track='none', output_dir='w')\n"
        "try:\n    list(paceline.train(c))\nexcept paceline.BadInput as e:\n    print(e)\n",
        (0,),
    ),
    "a callable that returns one env twice": (
        "import gymnasium as gym\nenv = gym.make('CartPole-v1')\n"
        "c = paceline.Config(env_id=lambda: env, total_iters=2, num_envs=4,"
        " compile='off', track='none', output_dir='w')\n"
        "try:\n    list(paceline.train(c))\nexcept paceline.PacelineError as e:\n    print(e)\n",
        (0,),
    ),
    "interrupted in the loop": (
        "try:\n    for r in paceline.train(config):\n        raise KeyboardInterrupt\n"
        "except KeyboardInterrupt:\n    pass\n"
        "assert list(paceline.resume('run'))\n",
        (0,),
    ),
    "sys.exit in the loop": (
        "for r in paceline.train(config):\n    sys.exit(0)\n",
        (0,),
    ),
    "make_vec left open": (
        "v = paceline.make_vec('CartPole-v1', 2)\n",
        (0,),
    ),
    "make_vec closed twice": (
        "v = paceline.make_vec('CartPole-v1', 2)\nv.close()\nv.close()\n",
        (0,),
    ),
    "star import": ("from paceline import *\n", (0,)),
    "reloaded": (
        "import importlib\nimportlib.reload(paceline)\nlist(paceline.train(config))\n",
        (0,),
    ),
}


BAD = "paceline.BadInput"
ERRORS = {"config a class": "paceline.PacelineError"}


def trials() -> list[Trial]:
    found = [
        Trial(
            "python",
            f"refused: {name}",
            script=_refused(code, ERRORS.get(name, BAD)),
            says="refused: ",
        )
        for name, code in REFUSED.items()
    ]
    known = ("default dtype float64",)
    found += [
        Trial("python", name, script=HEAD + code, codes=codes, known=name in known)
        for name, (code, codes) in SCRIPTS.items()
    ]
    return found
