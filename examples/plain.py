"""An exact loss in a plain torch loop: SACLR with one negative on scikit-learn's digits.

python examples/plain.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from nearfar.evaluation import knn_accuracy
from nearfar.losses import SACLR
from nearfar.views import make_views, plan

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images * 15.9375).to(torch.uint8)[:, None]  # [1797, 1, 8, 8]
is_test = torch.arange(len(images)) % 5 == 4
train, labels = images[~is_test], digits.target[~is_test]

encoder = nn.Sequential(
    nn.Conv2d(1, 64, 3, padding=1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Conv2d(64, 128, 3, stride=2, padding=1),
    nn.BatchNorm2d(128),
    nn.ReLU(),
    nn.Flatten(),
)
projector = nn.Sequential(nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 64))
loss_of = SACLR(num_images=len(train), scale="row")  # keeps one number for each image in a buffer

trained = nn.ModuleList([encoder, projector, loss_of])
optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
views, chance = plan("grayscale", image_size=8, channels=1), torch.Generator().manual_seed(0)

for epoch in range(6):
    for index in torch.randperm(len(train)).split(256):
        first, second = make_views(train[index], views, chance, mean=[0.3], std=[0.4])
        loss = loss_of(projector(encoder(first)), projector(encoder(second)), index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}  loss {loss.item():.3f}")

encoder.eval()
with torch.no_grad():
    features = encoder((images / 255 - 0.3) / 0.4)
accuracy = knn_accuracy(features[~is_test], labels, features[is_test], digits.target[is_test])
print(f"kNN accuracy {accuracy:.3f}")
