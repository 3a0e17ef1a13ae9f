"""Follow runs in Weights & Biases or MLflow, and search settings with Optuna, by `on_metrics`.

Each needs its own package: `pip install wandb`, `mlflow` or `optuna`. Run as a script, this searches
the temperature of SimCLR on scikit-learn's digits: `python examples/trackers.py`.
"""

from __future__ import annotations

from typing import Any

import nearfar


def flat(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics by one name each, such as "health/lidar"."""
    numbers = {}
    for name, value in line.items():
        inner = value if isinstance(value, dict) else {"": value}
        numbers |= {f"{name}/{key}".rstrip("/"): number for key, number in inner.items()}
    return {name: number for name, number in numbers.items() if isinstance(number, (int, float))}


def with_wandb(data: Any, **settings: Any) -> nearfar.Run:
    """Train with a page of Weights & Biases; WANDB_MODE=offline needs no account."""
    import wandb

    with wandb.init(project="nearfar", config=settings) as page:
        return nearfar.pretrain(
            data,
            on_metrics=lambda line: page.log(flat(line), step=line["step"]),
            **settings,
        )


def with_mlflow(data: Any, **settings: Any) -> nearfar.Run:
    """Train with a run of MLflow."""
    import mlflow

    with mlflow.start_run():
        mlflow.log_params(settings)
        return nearfar.pretrain(
            data,
            on_metrics=lambda line: mlflow.log_metrics(flat(line), step=line["step"]),
            **settings,
        )


def search(data: Any, trials: int, folder: str, **settings: Any) -> Any:
    """Search the temperature with Optuna, by the kNN accuracy of held-out images while training;
    runs that fall behind end early. Needs images with labels.

    Returns Optuna's study.
    """
    import optuna

    def objective(trial: Any) -> float:
        temperature = trial.suggest_float("temperature", 0.05, 1.0, log=True)

        def report(line: dict[str, Any]) -> bool:
            if "health" not in line or line["step"] == 0:
                return False
            trial.report(line["health"]["knn"], line["step"])
            return trial.should_prune()

        run = nearfar.pretrain(
            data,
            out=f"{folder}/trial-{trial.number}",
            temperature=temperature,
            on_metrics=report,
            **settings,
        )
        if trial.should_prune():
            raise optuna.TrialPruned
        knn = [line["health"]["knn"] for line in run.metrics if "health" in line]
        return float(knn[-1])

    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=trials)
    return study


if __name__ == "__main__":
    study = search("digits", trials=5, folder="runs/search", encoder="tiny", epochs=4, held_out=300)
    for trial in study.trials:
        print(f"temperature {trial.params['temperature']:.3f}: kNN {trial.value:.3f}")
    print(f"best temperature {study.best_params['temperature']:.3f}")
