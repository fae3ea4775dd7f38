"""Readers: every layout is recognised, and what does not fit it is named."""

import csv
import random

import numpy as np
import pytest

from canal.data import synthetic
from canal.data.decode import decode_mask
from canal.data.load import load
from canal.data.readers import LAYOUTS, read
from canal.errors import DataError
from canal.gradients.patients import Patients


def _ids(data):
    return [case.id for case in data.cases]


def _patients(data):
    return {case.id: case.patient for case in data.cases}


def _isic(folder):
    for name in ("ISIC_0000002", "ISIC_0000001"):
        folder.pair(
            f"ISIC2018_Task1-2_Training_Input/{name}.jpg",
            f"ISIC2018_Task1_Training_GroundTruth/{name}_segmentation.png",
        )
    folder.at("ISIC2018_Task1-2_Training_Input/LICENSE.txt").write_text("CC BY-NC")


def _busi(folder):
    for kind in ("benign", "malignant", "normal"):
        folder.image(f"{kind}/{kind} (1).png", colour=False)
        folder.mask(f"{kind}/{kind} (1)_mask.png", box=(0, 4, 0, 4))
    folder.mask("normal/normal (1)_mask.png", box=(0, 0, 0, 0))
    folder.mask("benign/benign (1)_mask_1.png", box=(10, 14, 10, 14))


def _cvc(folder):
    for frame in (1, 2, 10):
        folder.pair(f"PNG/Original/{frame}.png", f"PNG/Ground Truth/{frame}.png")
    folder.csv("metadata.csv", ("frame_id", "sequence_id"), (1, 1), (2, 1), (10, 2))


def _kvasir(folder):
    for name in "cab":
        folder.pair(f"images/{name}.jpg", f"masks/{name}.jpg")
    folder.csv("metadata.csv", ("image", "patient"), ("a", 1), ("b", 1), ("c", 2))


def _msd(folder, *names):
    labels = {"0": "background", "1": "Anterior", "2": "Posterior"}
    folder.json("dataset.json", {"labels": labels, "training": [], "modality": {"0": "MRI"}})
    for name in names:
        folder.scan(f"imagesTr/{name}.nii.gz")
        folder.volume(
            f"labelsTr/{name}.nii.gz", np.arange(720, dtype=np.int16).reshape(8, 9, 10) % 3
        )


def _nnunet(folder):
    folder.json("dataset.json", {"labels": {"background": 0, "lesion": [1, 2], "rim": 2}})
    for name in ("scan_001", "scan_002"):
        for channel in ("0000", "0001"):
            folder.image(f"imagesTr/{name}_{channel}.png", colour=False)
        folder.pixels(f"labelsTr/{name}.png", np.arange(480).reshape(24, 20) % 3)


def test_isic(folder):
    _isic(folder)
    data = read(folder.root)
    assert data.layout == "ISIC 2018 Task 1"
    assert _ids(data) == ["ISIC_0000001", "ISIC_0000002"]
    assert data.cases[0].masks[0].name == "ISIC_0000001_segmentation.png"
    assert data.problems == ()


def test_busi_joins_the_masks_of_an_image_and_keeps_normal_ones_if_asked(folder):
    _busi(folder)
    data = read(folder.root)
    assert data.layout == "BUSI"
    assert _ids(data) == ["benign (1)", "malignant (1)", "normal (1)"]
    assert [decode_mask(case, size=None).sum() for case in data.cases] == [32, 16, 0]
    without = read(folder.root, keep_healthy=False)
    assert _ids(without) == ["benign (1)", "malignant (1)"]
    assert data.problems == without.problems == ()


@pytest.mark.parametrize("inside", ["", "PNG"])
def test_cvc_keeps_its_sequences_wherever_one_points(folder, inside):
    _cvc(folder)
    data = read(folder.root / inside)
    assert data.layout == "CVC-ClinicDB"
    assert _patients(data) == {"1": "sequence 1", "2": "sequence 1", "10": "sequence 2"}
    assert data.problems == ()


def test_cvc_without_its_sequences_is_not_passed_over(folder):
    _cvc(folder)
    (folder.root / "metadata.csv").unlink()
    (problem,) = read(folder.root).problems
    assert problem.file == "metadata.csv"
    assert "frame_id and sequence_id" in problem.remedy


@pytest.mark.parametrize("masks", ["masks/{}.jpg", "masks/{}.png", "labels/{}_mask.png"])
def test_a_pair_of_folders(folder, masks):
    for name in ("b", "a", "two.dots"):
        folder.pair(f"images/{name}.jpg", masks.format(name))
    data = read(folder.root)
    assert data.layout == "images/ and masks/"
    assert _patients(data) == {name: f"image {name}" for name in ("a", "b", "two.dots")}
    assert {case.site for case in data.cases} == {""}
    assert data.problems == ()


def test_an_image_may_be_called_like_a_mask(folder):
    folder.pair("images/scan_seg.png", "masks/scan_seg.png")
    assert _ids(read(folder.root)) == ["scan_seg"]


def test_each_hospital_has_a_folder(folder):
    for place in ("oslo/images/1", "oslo/images/2", "paris/images/1"):
        folder.pair(f"{place}.png", f"{place.replace('images', 'masks')}.png")
    folder.csv("oslo/metadata.csv", ("image", "Patient ID"), ("1.png", 7), ("2.png", 7))
    data = read(folder.root)
    assert [(case.id, case.site) for case in data.cases] == [
        ("oslo/1", "oslo"),
        ("oslo/2", "oslo"),
        ("paris/1", "paris"),
    ]
    patients = _patients(data)
    assert patients["oslo/1"] == patients["oslo/2"] == "oslo patient 7"
    assert patients["paris/1"] == "image paris/1"
    assert data.problems == ()  # Paris has no metadata.csv, so it says nothing about anyone


def test_the_patient_column_is_neither_an_age_nor_a_lesion(folder):
    folder.pair("images/a.png", "masks/a.png")
    folder.csv("metadata.csv", ("image", "patient_age", "lesion_id", "patient_id"), ("a", 50, 1, 9))
    assert _patients(read(folder.root)) == {"a": "patient 9"}


@pytest.mark.parametrize("rows", [[("a", 1)], [("a", 1), ("b", "")], [("x", 1), ("y", 2)]])
def test_images_that_the_metadata_leaves_out_are_a_problem(folder, rows):
    for name in "ab":
        folder.pair(f"images/{name}.png", f"masks/{name}.png")
    folder.csv("metadata.csv", ("image", "patient"), *rows)
    (problem,) = read(folder.root).problems
    assert problem.file == "metadata.csv"
    assert "no patient or sequence for" in problem.what
    assert "add their rows" in problem.remedy
    with pytest.raises(DataError, match="gives no patient or sequence for"):
        read(folder.root).check()


@pytest.mark.parametrize(
    ("header", "between"),
    [
        (("patient", "image"), ","),
        (("image", "patient"), ";"),
        (("image", "patient_number"), ","),
        (("image", "patient_age"), ","),
        ((), ","),
    ],
)
def test_a_table_that_does_not_say_whose_images_are_is_refused(header, between, folder):
    """Else two images of a person count as two people, each of whom pays for one."""
    folder.pair("images/a.png", "masks/a.png")
    folder.at("metadata.csv").write_text(between.join(header) + f"\na{between}1\n")
    with pytest.raises(DataError, match=r"not say whose each image is.*named patient or sub"):
        read(folder.root)


def test_pictures_alone_know_whose_they_are_too(folder):
    for name in "ab":
        folder.image(f"{name}.png")
    folder.csv("metadata.csv", ("image", "patient"), ("a", 1))
    with pytest.raises(DataError, match=r"gives no patient or sequence for 1 images \(b, …\)"):
        read(folder.root, unlabelled=True).check()


def test_a_table_in_another_encoding_is_an_error_with_a_way_out(folder):
    folder.pair("images/a.png", "masks/a.png")
    folder.at("metadata.csv").write_bytes("image,patient\na,Müller\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"metadata\.csv.*save it as a CSV in UTF-8"):
        read(folder.root)


def test_decathlon_volumes(folder):
    _msd(folder, "hippocampus_004", "hippocampus_001")
    folder.at("imagesTr/._hippocampus_001.nii.gz").write_bytes(b"what a Mac leaves behind")
    data = read(folder.root)
    assert (data.layout, data.spatial_dims) == ("MSD / nnU-Net raw", 3)
    assert _ids(data) == ["hippocampus_001", "hippocampus_004"]
    assert data.cases[0].labels == (1, 2)
    assert decode_mask(data.cases[0], size=None).sum() == 480
    assert data.problems == ()


def test_four_digits_at_the_end_of_a_name_are_not_always_a_channel(folder):
    _msd(folder, "scan_0001", "scan_0002")
    assert _ids(read(folder.root)) == ["scan_0001", "scan_0002"]


def test_nnunet_channels_are_one_case(folder):
    _nnunet(folder)
    data = read(folder.root)
    assert (data.spatial_dims, _ids(data)) == (2, ["scan_001", "scan_002"])
    names = [path.name for path in data.cases[0].image]
    assert names == ["scan_001_0000.png", "scan_001_0001.png"]
    assert data.cases[0].labels == (1, 2)
    assert data.problems == ()


def test_nnunet_problems_name_the_file_that_is_missing(folder):
    _nnunet(folder)
    folder.image("imagesTr/scan_003_0000.png")
    folder.mask("labelsTr/scan_004.png")
    (folder.root / "imagesTr/scan_002_0001.png").unlink()
    said = {problem.file: (problem.what, problem.remedy) for problem in read(folder.root).problems}
    assert said.keys() == {
        "imagesTr/scan_003_0000.png",
        "labelsTr/scan_004.png",
        "imagesTr/scan_002_0000.png",
    }
    assert "add labelsTr/scan_003.png" in said["imagesTr/scan_003_0000.png"][1]
    assert "without an image" in said["labelsTr/scan_004.png"][0]
    assert "1 channel files, where other cases have 2" in said["imagesTr/scan_002_0000.png"][0]


@pytest.mark.parametrize("content", ["{", "[]", '{"labels": ["lesion"]}', '{"labels": {"a": "b"}}'])
def test_a_description_without_labels_is_an_error_with_an_example(folder, content):
    _msd(folder, "a")
    folder.at("dataset.json").write_text(content)
    with pytest.raises(DataError, match=r"dataset\.json has no readable labels.*\"lesion\": 1"):
        read(folder.root)


def test_missing_extra_and_double_files_are_named_with_a_remedy(folder):
    folder.pair("images/a.png", "masks/a.png")
    folder.image("images/a.jpg")
    folder.image("images/lonely.png")
    folder.mask("masks/stray.png")
    data = read(folder.root)
    assert _ids(data) == ["a"]
    assert [(p.file, p.what, p.remedy) for p in data.problems] == [
        (
            "images/a.png",
            "has the same id as images/a.jpg, and would take its place",
            "remove one of the two",
        ),
        (
            "images/lonely.png",
            "has no mask",
            "add the mask, or take the image out of the folder",
        ),
        (
            "masks/stray.png",
            "is a mask without an image",
            "add the image, or take the mask out of the folder",
        ),
    ]


@pytest.mark.parametrize("build", [_isic, _busi, _cvc, _nnunet, _kvasir])
def test_a_download_wrapped_in_folders_is_the_same(folder, tmp_path, build):
    build(folder)
    plain = _patients(read(folder.root))
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / ".DS_Store").touch()
    folder.root.rename(tmp_path / "outer" / "inner" / "download")
    assert _patients(read(tmp_path / "outer")) == plain


@pytest.mark.parametrize("build", [_isic, _busi, _cvc, _nnunet, _kvasir])
def test_the_order_of_files_does_not_matter(folder, build, monkeypatch):
    build(folder)
    expected = read(folder.root)
    listed = type(folder.root).iterdir
    shuffle = random.Random(1).sample

    def shuffled(path):
        files = list(listed(path))
        return iter(shuffle(files, len(files)))

    monkeypatch.setattr(type(folder.root), "iterdir", shuffled)
    assert read(folder.root) == expected


@pytest.mark.parametrize("content", ["nothing", "another", "file"])
def test_an_unknown_folder_tells_the_way_out(folder, content):
    if content == "nothing":
        folder.root.mkdir()
    else:
        folder.image("photos/a.png")
    path = folder.root / "photos/a.png" if content == "file" else folder.root
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert all(layout in str(caught.value) for layout in LAYOUTS)
    assert "put images into images/ and masks of the same names into masks/" in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="does not exist; give the folder"):
        read(tmp_path / "gone")


@pytest.mark.parametrize("size", [(32, 32), (16, 16, 16)])
def test_what_the_synthetic_hospitals_write_is_read(tmp_path, size):
    synthetic.write(tmp_path, 9, size=size)
    data = read(tmp_path)
    with (tmp_path / "metadata.csv").open(newline="") as file:
        patients = {row["image_id"]: row["patient_id"] for row in csv.DictReader(file)}
    assert set(_ids(data)) == set(patients)
    assert {case.site for case in data.cases} == set(synthetic.HOSPITALS)
    assert all(case.patient.endswith(patients[case.id]) for case in data.cases)
    assert (data.spatial_dims, data.problems) == (len(size), ())


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "layout", "cases", "groups", "dims"),
    [
        ("Kvasir-SEG", "images/ and masks/", 800, 800, 2),
        ("ISIC2018", "ISIC 2018 Task 1", 2075, 2075, 2),
        ("Dataset_BUSI_with_GT", "BUSI", 624, 624, 2),
        ("CVC-ClinicDB", "CVC-ClinicDB", 612, 29, 2),
        ("ETIS-LaribPolypDB", "images/ and masks/", 196, 196, 2),
        ("Task04_Hippocampus", "MSD / nnU-Net raw", 130, 130, 3),
    ],
)
def test_real_downloads_are_recognised(real, name, layout, cases, groups, dims):
    data = read(real / name)
    assert (data.layout, len(data.cases), data.spatial_dims) == (layout, cases, dims)
    assert len(set(_patients(data).values())) == groups
    assert data.problems == ()


@pytest.mark.data
def test_real_busi_without_its_normal_cases(real):
    assert len(read(real / "Dataset_BUSI_with_GT", keep_healthy=False).cases) == 517


def test_a_datalist(folder):
    for name in "abc":
        folder.pair(f"pictures/{name}.png", f"truth/{name}.png")
    entries = [
        {"image": f"pictures/{name}.png", "label": f"truth/{name}.png", "patient": who}
        for name, who in (("a", 1), ("b", 1), ("c", 2))
    ]
    entries[2]["site"] = "oslo"
    folder.json(
        "list.json",
        {"training": entries[:2], "validation": entries[2:], "test": ["pictures/d.png"]},
    )
    data = read(folder.root / "list.json")
    assert data.layout == "MONAI datalist"
    assert _ids(data) == ["pictures/a", "pictures/b", "pictures/c"]
    assert [case.patient for case in data.cases] == ["patient 1", "patient 1", "patient 2"]
    assert [case.site for case in data.cases] == ["", "", "oslo"]
    assert data.problems == ()


def test_a_datalist_of_volumes_is_named_without_suffix(folder):
    folder.scan("a.nii.gz")
    folder.volume("a_seg.nii.gz", np.ones((8, 9, 10), np.uint8))
    folder.json("list.json", {"training": [{"image": ["./a.nii.gz"], "label": "a_seg.nii.gz"}]})
    data = read(folder.root / "list.json")
    assert (data.spatial_dims, _ids(data)) == (3, ["a"])
    assert decode_mask(data.cases[0], size=None).all()


def test_problems_in_a_datalist(folder):
    folder.pair("a.png", "a_mask.png")
    good = {"image": "a.png", "label": "a_mask.png"}
    gone = {"image": "a.png", "label": "gone.png"}
    folder.json("list.json", {"training": [good, {"image": "a.png"}, gone], "validation": [good]})
    data = read(folder.root / "list.json")
    assert _ids(data) == ["a"]
    lacking, missing, twice = data.problems
    assert (lacking.file, lacking.what) == ("list.json, entry 1", "lacks image or label")
    assert missing.file.endswith("gone.png")
    assert (twice.file, twice.remedy) == ("list.json, entry 3", "list every image once")


@pytest.mark.parametrize("key", ["patient", "patient_id", "PatientID", "subject_id", "lesion"])
def test_a_person_is_known_by_whatever_a_table_may_call_one(folder, key):
    _listed(folder, {"a": {key: 1}, "b": {key: 1}, "c": {key: 2}})
    cases = read(folder.root / "list.json").cases
    assert [case.patient for case in cases] == ["patient 1", "patient 1", "patient 2"]


@pytest.mark.parametrize("nobody", [{}, {"patient": None}, {"patient": " "}])
def test_where_nobody_is_known_everybody_is_somebody_else(folder, nobody, monkeypatch):
    monkeypatch.setenv("CANAL_CACHE", str(folder.root / "cache"))
    _listed(folder, {"7": nobody, "x": nobody})
    assert len(Patients("here", load(folder.root / "list.json", size=32))) == 2


def test_a_list_that_knows_only_some_people_is_refused(folder):
    """Whoever it does not know may be one of them, under two names."""
    _listed(folder, {"7": {"patient": None}, "x": {"patient": "7"}})
    data = read(folder.root / "list.json")
    with pytest.raises(
        DataError, match=r"gives no patient for 1 images \(7, …\); name the patient"
    ):
        data.check()


def _listed(folder, people):
    """A datalist of images, with what is known of each."""
    for name in people:
        folder.pair(f"{name}.png", f"{name}_mask.png")
    entries = [
        {"image": f"{name}.png", "label": f"{name}_mask.png"} | known
        for name, known in people.items()
    ]
    folder.json("list.json", {"training": entries})


@pytest.mark.parametrize("content", ["not json", "[]", '{"training": null}'])
def test_another_json_is_no_datalist(folder, content):
    folder.at("list.json").write_text(content)
    with pytest.raises(DataError, match=r"list\.json is no MONAI datalist.*it should hold"):
        read(folder.root / "list.json")
