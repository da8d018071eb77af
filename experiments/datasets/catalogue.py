"""The data sets of the experiments: what each file is, where people get it, its checksum.

A data set has one or more forms (official files, or one `.npz` with X, y, X_test, y_test). The first form whose files
are all there is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.datasets.adult import adult_tables
from experiments.datasets.census import FILES, census_parts
from experiments.datasets.formats import Parts, cifar_batches, mnist_idx, one_npz, part_npz, usps_plain, usps_sparse


@dataclass(frozen=True)
class Form:
    """Files or folders that together are one data set, and how they are read; without `read` they stay paths."""

    files: tuple[str, ...]
    read: Callable[[Path, tuple[str, ...]], Parts] | None
    own: bool = False  # features that the user made: no digest is known, and which encoder it was they must say


@dataclass(frozen=True)
class Entry:
    """What is known of a data set; `label` is said beside every number from data that is not the paper's own."""

    name: str
    title: str
    publisher: str
    forms: tuple[Form, ...]
    label: str = ""
    sha256: str = ""
    pictures: str = ""  # the folder of images as it is published, where the experiments need features of them


def _npz(name: str) -> Form:
    return Form((name,), one_npz)


def _own(name: str) -> Form:
    return Form((name,), one_npz, own=True)


def _part(name: str, of: str, **kept: Any) -> tuple[Form, ...]:
    """A part of a data set: in a file of its own, or cut from the whole."""
    return _npz(name), Form((of,), partial(part_npz, **kept))


def _idx(end: str) -> Form:
    kinds = ("images-idx3", "labels-idx1")
    return Form(tuple(f"{part}-{kind}-ubyte{end}" for part in ("train", "t10k") for kind in kinds), mnist_idx)


OWN_FEATURES = "features by an encoder of the user's own; the paper's are by a ResNet-18"
_EMBEDDED = (
    "features by an ImageNet ResNet-50 (512 principal components of its 2,048 outputs); the paper's are by a ResNet-18"
)
# SHA-256 of files, where they are known
FILE_DIGESTS = {
    "adult.data.csv.gz": "961cac17fe14051c088f8fb911ddf05c7f16ded5c117a099d02c1e6a36c14910",
    "adult.test.csv.gz": "5a909697e10307510414b428a622905783b386f6f8a62215a21ca76f0864a49a",
    "caltech101-resnet50-pca512.npz": "287e9748825b24b503157e6264577c6d2e24d40c181b56b41e5e69f2f18bed66",
    "cifar10-resnet50-pca512.npz": "d454e168ff8e63a8a2b53478c2c1f3159d6440b27d9a87235211f329e37c40c6",
    "employment_MA_analysis.pq": "45fd8670485d31400476aeecd4fc4e7ff0c37933510f0478871e6320ee2f204e",
    "employment_MA_analysis_target.pq": "407f17e9abd004c7fdbe08c1e7acbd8dacc4987ef01b49c09b4313be1fde0c47",
    "employment_MA_reference.pq": "4ffe46ab160fb407147ac9432dd16426414e4a651b10d1c3750912d3b8f5c198",
    "mnist.npz": "5c76440e9f085949fbb4d3b807214ff882570b25e527f5c5a0dd87511a3358cf",
    "stanford-dogs-resnet50-pca512.npz": "c9176358c6a1040bb0c8e40673b8a9e6c5cab6de3a6e45bf23695d4eddd8dc3b",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "usps.npz": "58480cbf0971c0d8b9e1f9e4d81bc31b7be883f83c8e562dcdbc5864726a0414",
}
CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry(
            "mnist",
            "MNIST handwritten digits, 60,000 and 10,000 images of 28 x 28 bytes",
            "http://yann.lecun.com/exdb/mnist",
            (_npz("mnist.npz"), _idx(""), _idx(".gz")),
            sha256="80e2a593147483864fd148fa22d5cf7364bb0e227bb76ada320916d3bd09c996",
        ),
        Entry(
            "usps",
            "USPS zip code digits, 7,291 and 2,007 images of 16 x 16 values in [-1, 1]",
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps (usps.bz2, usps.t.bz2), or "
            "https://hastie.su.domains/ElemStatLearn/data.html (zip.train.gz, zip.test.gz)",
            (
                _npz("usps.npz"),
                Form(("usps.bz2", "usps.t.bz2"), usps_sparse),
                Form(("zip.train.gz", "zip.test.gz"), usps_plain),
            ),
            sha256="e36ba32e4cdde37240732d43eed97fdb80be0c5272ab5806f5c60c02ab069de0",
        ),
        Entry(
            "cifar10-images",
            "CIFAR-10, 50,000 and 10,000 images of 3 x 32 x 32 bytes",
            "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-10-binary.tar.gz, unpacked)",
            (
                Form(("cifar-10-batches-bin",), cifar_batches),
                _npz("cifar10-images.npz"),
            ),
            sha256="d1172c97ad1171d4a30efe83b32ae49d0ade8003af6d29e4f2b604b33031bbfc",
        ),
        Entry(
            "cifar10",
            "CIFAR-10 as features, 50,000 and 10,000 rows of 512",
            "the images of CIFAR-10, by expunge embed",
            (_npz("cifar10-resnet50-pca512.npz"), _own("cifar10-embeddings.npz")),
            label=_EMBEDDED,
            pictures="cifar-10-batches-bin",
            sha256="16258efe60cbb8820031e20f087602093b349f3f9f73bb5f1c5fa06de3441999",
        ),
        Entry(
            "stanford-dogs",
            "Stanford Dogs as features, 15,730 and 1,746 rows of 512, 120 classes",
            "http://vision.stanford.edu/aditya86/ImageNetDogs (images.tar), then expunge embed",
            (_npz("stanford-dogs-resnet50-pca512.npz"), _own("stanford-dogs-embeddings.npz")),
            label=f"17,476 of the 20,580 images (85 %), random 90/10 split; {_EMBEDDED}",
            pictures="Images",
            sha256="b31ec49cb7d8b8438fc64900257d4f738b8944aa8ab161e3385e8a93e15bb318",
        ),
        Entry(
            "caltech101",
            "Caltech-101 as features, 7,810 and 867 rows of 512, 101 classes",
            "https://data.caltech.edu/records/mzrjq-6wc02, then expunge embed",
            (_npz("caltech101-resnet50-pca512.npz"),),
            label=f"Caltech-101, NOT the paper's Caltech-256; random 90/10 split; {_EMBEDDED}",
            sha256="b80632e136c88b725ba8e745d927020ec207130fda9d8c8377bc1a32141022ef",
        ),
        Entry(
            "cifar10-part",
            "the first 36,000 and 4,000 rows of CIFAR-10 as features",
            "the images of CIFAR-10, by expunge embed",
            _part("cifar10-part.npz", "cifar10-resnet50-pca512.npz", rows=(36_000, 4_000)),
            label=f"the first 36,000 and 4,000 rows; {_EMBEDDED}",
            sha256="35ef32d0b3cc775df62485f0de137c3765da90e296027ad82a95938837ec71e1",
        ),
        Entry(
            "cifar10-3v8",
            "the cats and ships of CIFAR-10 as features, 10,000 and 2,000 rows of 512",
            "the images of CIFAR-10, by expunge embed",
            _part("cifar10-3v8.npz", "cifar10-resnet50-pca512.npz", classes=(3, 8)),
            label=_EMBEDDED,
            sha256="711491a198c3e0f125653b157683368aa9efec77b7013ec1b5b21eb674484b7c",
        ),
        Entry(
            "stanford-dogs-256",
            "the first 256 columns of Stanford Dogs as features",
            "http://vision.stanford.edu/aditya86/ImageNetDogs (images.tar), then expunge embed",
            _part("stanford-dogs-256.npz", "stanford-dogs-resnet50-pca512.npz", columns=256),
            label=f"the 256 leading components; 17,476 of the 20,580 images (85 %), random 90/10 split; {_EMBEDDED}",
            sha256="9abb799aeff4782d2d4b76f68890e92f872a9cc0f0ed4cc2f44620a6c717c9f4",
        ),
        Entry(
            "caltech101-256",
            "the first 256 columns of Caltech-101 as features",
            "https://data.caltech.edu/records/mzrjq-6wc02, then expunge embed",
            _part("caltech101-256.npz", "caltech101-resnet50-pca512.npz", columns=256),
            label=f"the 256 leading components; NOT the paper's Caltech-256; random 90/10 split; {_EMBEDDED}",
            sha256="d495a51cf11f2af84c075e67abbe7860a1e4a5a950baa44bcb12633c67bad09a",
        ),
        Entry(
            "caltech256",
            "Caltech-256 as features, 257 classes",
            "https://data.caltech.edu/records/nyy15-4j048 (256_ObjectCategories.tar), then expunge embed",
            (_own("caltech256-embeddings.npz"),),
            pictures="256_ObjectCategories",
        ),
        Entry(
            "employment",
            "US census (ACS) employment in Massachusetts: 2015, and 2016 to 2018 with its labels apart",
            "https://github.com/NannyML/nannyml (load_us_census_ma_employment_data)",
            (
                Form(
                    (
                        "employment_MA_reference.pq",
                        "employment_MA_analysis.pq",
                        "employment_MA_analysis_target.pq",
                    ),
                    None,
                ),
            ),
            label="not in the paper: a natural case of our own",
        ),
        Entry(
            "employment-2015",
            "US census (ACS) employment in Massachusetts, the people of 2015 alone, every fifth to test on",
            "https://github.com/NannyML/nannyml (load_us_census_ma_employment_data)",
            (Form(FILES, census_parts), _npz("employment-2015.npz")),
            label="not in the paper; one column a code, ages in bands of five years",
            sha256="7d91df01352f1cb34fe6db47f41cd9fd71dc80f7059957e97f58c618f72ab310",
        ),
        Entry(
            "sst2",
            "SST-2 as features, 20,000 and 872 rows of 384",
            "GLUE (https://gluebenchmark.com), then python -m experiments.datasets.sst2",
            (_npz("sst2-minilm-l6.npz"),),
            label="not in the paper; sentences and phrases through all-MiniLM-L6-v2, mean over tokens",
            sha256="9ef2e32d185257f011a85c71a525422d73af0a3f937020316b85add84fcb05e9",
        ),
        Entry(
            "adult",
            "UCI Adult (census income), 32,561 and 16,281 rows",
            "https://archive.ics.uci.edu/dataset/2/adult",
            (Form(("adult.data.csv.gz", "adult.test.csv.gz"), adult_tables), _npz("adult.npz")),
            label="not in the paper; numbers standardised and words one column each, fitted once to the training file",
            sha256="4db80517e2152dedef649e4123c4aa8b25f17fd6b0d59fd7eb0d101ab7d16555",
        ),
    )
}
