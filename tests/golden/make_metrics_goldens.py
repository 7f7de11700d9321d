#!/usr/bin/env python3
"""Prints what scikit-learn, scipy and seqeval make of random predictions: the tables of tests/train/metrics_test.cpp.

    pip install numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 seqeval==1.2.2
    python3 tests/golden/make_metrics_goldens.py

The predictions are not stored: both sides make them from the generator of src/base/rng.h.
"""
import warnings

import numpy as np
from scipy import stats
from seqeval import metrics as entities
from sklearn import metrics

from make_bpe_goldens import philox

SEED = 20240521
TAGS = ["B-LOC", "B-PER-X", "I-LOC", "I-PER-X", "O"]


def classes_of(case, classes, count, used):
    """Truth and predictions; six of ten predictions are right but for chance. Classes from `used` on do not occur."""
    words = philox(SEED, case, count)
    truth = [words[4 * i] % used for i in range(count)]
    return truth, [truth[i] if words[4 * i + 1] % 10 < 6 else words[4 * i + 2] % used for i in range(count)]


def show(*numbers):
    return "{" + ", ".join(f"{float(n):.17g}" for n in numbers) + "}"


warnings.simplefilter("ignore")
print("classes, count, used: accuracy, precision, recall, f1, matthews, macro f1, micro f1, largest share")
for case, (classes, count, used) in enumerate([(2, 200, 2), (2, 30, 1), (3, 200, 3), (5, 100, 4), (7, 5, 7)]):
    truth, predicted = classes_of(case, classes, count, used)
    average = "binary" if classes == 2 else "macro"
    p, r, f, _ = metrics.precision_recall_fscore_support(truth, predicted, average=average, zero_division=0)
    print(f"{{{case}, {classes}, {count}, {used},",
          show(metrics.accuracy_score(truth, predicted), p, r, f, metrics.matthews_corrcoef(truth, predicted),
               metrics.f1_score(truth, predicted, average="macro", zero_division=0),
               metrics.f1_score(truth, predicted, average="micro", zero_division=0),
               max(truth.count(c) for c in range(classes)) / count) + "},")

print("label: precision, recall, f1, examples; then the confusion matrix, of 3 classes")
truth, predicted = classes_of(2, 3, 200, 3)
for c, (p, r, f, n) in enumerate(zip(*metrics.precision_recall_fscore_support(truth, predicted))):
    print(f"{{{c},", show(p, r, f, n) + "},")
print(metrics.confusion_matrix(truth, predicted).tolist())

print("steps of truth, steps of predictions: pearson, spearman, mse, mae")
for case, (steps, noise) in enumerate([(5, 3), (50, 1000), (1000, 5)]):
    words = philox(SEED, 100 + case, 80)
    truth = np.array([words[4 * i] % steps for i in range(80)], np.float32) / np.float32(4)
    predicted = truth + np.array([words[4 * i + 1] % noise for i in range(80)], np.float32) / np.float32(8)
    truth, predicted = truth.astype(np.float64), predicted.astype(np.float64)
    print(f"{{{case}, {steps}, {noise},", show(stats.pearsonr(truth, predicted)[0], stats.spearmanr(truth, predicted)[0],
                                              metrics.mean_squared_error(truth, predicted),
                                              metrics.mean_absolute_error(truth, predicted)) + "},")

print("part that is right, of 10: accuracy, precision, recall, f1, macro f1 of entities")
for right in (0, 5, 9):
    truth, predicted = [], []
    for row in range(60):
        words = philox(SEED, 1000 + row, 16)
        length = 1 + words[3] % 12
        truth.append([words[4 * i] % 5 for i in range(length)])
        predicted.append([truth[-1][i] if words[4 * i + 1] % 10 < right else words[4 * i + 2] % 5 for i in range(length)])
    truth, predicted = ([[TAGS[i] for i in row] for row in rows] for rows in (truth, predicted))
    print(f"{{{right},", show(entities.accuracy_score(truth, predicted), entities.precision_score(truth, predicted),
                             entities.recall_score(truth, predicted), entities.f1_score(truth, predicted),
                             entities.f1_score(truth, predicted, average="macro")) + "},")
