import numpy as np
import pytest
import torch
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from nearfar.evaluation import low_shot_precision
from nearfar.evaluation.average_precision import area_precision
from nearfar.evaluation.low_shot import draw_positives


def test_all_images_are_one_svm_for_each_class_on_unit_features(clouds):
    train_x, train_y, test_x, test_y = (part[:400] for part in clouds)
    expected = []
    for label in range(4):
        svm = LinearSVC(C=0.5, class_weight={True: 2, False: 1}, max_iter=2000, random_state=0)
        svm.fit(normalize(train_x.numpy()), train_y == label)
        expected.append(area_precision(test_y == label, svm.decision_function(normalize(test_x.numpy()))))
    found = low_shot_precision(train_x * 7, train_y, test_x * 3, test_y, shots=())
    assert found[None].mean == pytest.approx(np.mean(expected), abs=1e-4) and found[None].deviation == 0


def test_more_shots_are_better_and_a_seed_is_a_result(clouds):
    found = low_shot_precision(*clouds, shots=(2, 16))
    assert found[2].mean < found[16].mean < found[None].mean and found[2].deviation > found[16].deviation > 0
    assert found == low_shot_precision(*clouds, shots=(2, 16))


def test_one_label_an_image_is_a_matrix_with_one_1_in_a_row(clouds):
    train_x, train_y, test_x, test_y = (part[:200] for part in clouds)
    matrices = [np.where(y[:, None] == np.arange(4), 1, -1) for y in (train_y, test_y)]
    matrices[0][0] = np.where(matrices[0][0] == 1, 1, 0)  # difficult counts as not there
    assert low_shot_precision(train_x, train_y, test_x, test_y, shots=(4,)) == low_shot_precision(
        train_x, matrices[0], test_x, matrices[1], shots=(4,)
    )


def test_every_class_gets_its_positives_and_an_image_of_two_may_come_twice():
    labels = np.array([[1, -1]] * 3 + [[1, 1]] * 2 + [[-1, 1]])
    rows = draw_positives(labels, 2, [0])
    assert len(rows) == 4 and (labels[rows[:2], 0] == 1).all() and (labels[rows[2:], 1] == 1).all()
    assert sorted(draw_positives(labels, 9, [0])) == [0, 1, 2, 3, 3, 4, 4, 5]


def test_a_class_that_training_lacks_is_found_by_chance():
    x = torch.eye(4)
    found = low_shot_precision(x[[0, 1]], ["a", "b"], x, ["a", "b", "c", "d"], shots=())
    assert found[None].mean == pytest.approx((1 + 1 + 1 / 4 + 1 / 4) / 4)
