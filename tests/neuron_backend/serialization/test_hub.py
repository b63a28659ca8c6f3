import hashlib
import pathlib

import attrs
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoTokenizer

from decodekit.neuron_backend import compile_decoder, load_decoder
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.serialization.hub import download_decoder, is_repository
from decodekit.neuron_backend.tensor_parallel import lost_ranks
from decodekit.neuron_backend.tensor_parallel.ranks import Ranks

from ...hub_stand_in import forget_client, running_hub

REPOSITORY = "user/tiny"
PAIR = pathlib.Path(__file__).parents[3] / "examples" / "pair"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub stand-in and an empty cache."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with running_hub(monkeypatch, tmp_path / "hub") as hub:
        yield hub


@pytest.fixture(scope="module")
def eager(tiny_model):
    """A decoder without programs."""
    return compile_decoder(tiny_model("llama"), max_length=32, widths=(1, 2), target="eager")


@pytest.fixture(scope="module")
def compiled(tiny_model):
    """A decoder with one program, of width 2, so that compiling it again is quick."""
    return compile_decoder(tiny_model("llama"), max_length=32, widths=(2,), target="cpu")


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A machine that has compiled nothing."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "another machine"))


@pytest.fixture
def offline(monkeypatch):
    """A function that switches to offline mode."""

    def cut():
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        forget_client()

    yield cut
    forget_client()


def change(hub, folder, files, **facts):
    """Commit other *files* and *facts*, and a decoder.json that is consistent with them."""
    content = {**hub.files(REPOSITORY), **files}
    (folder / "decoder.json").write_bytes(content["decoder.json"])
    manifest = Manifest.read(folder)
    hashes = {name: hashlib.sha256(content[name]).hexdigest() for name in manifest.files}
    attrs.evolve(manifest, files=hashes, **facts).write(folder)
    hub.commit(REPOSITORY, {**content, "decoder.json": (folder / "decoder.json").read_bytes()})


def logits(decoder):
    """Logits of two tokens."""
    return decoder.forward(torch.tensor([[3, 5]]), torch.tensor([0])).clone()


class TestRoundTrip:
    """push_to_hub, then load_decoder."""

    def test_gives_the_same_bits(self, hub, eager):
        """The loaded decoder equals the pushed one, and the address is that of the commit."""
        address = eager.push_to_hub(REPOSITORY)
        loaded = load_decoder(REPOSITORY)

        assert torch.equal(logits(eager), logits(loaded))
        assert (eager.shape, eager.spans, "eager") == (loaded.shape, loaded.spans, loaded.target)
        assert address.endswith(f"/{REPOSITORY}/commit/{hub.branches[REPOSITORY]['main']}")

    def test_with_a_tokenizer(self, hub, eager):
        """It is saved beside the model, where transformers finds it."""
        eager.push_to_hub(REPOSITORY, AutoTokenizer.from_pretrained(PAIR / "target"))

        assert "tokenizer.json" in hub.files(REPOSITORY)
        assert (download_decoder(REPOSITORY) / "tokenizer.json").is_file()

    def test_of_a_revision(self, hub, eager, tiny_model):
        """A branch is created; it and each commit stay unchanged by later pushes."""
        wider = compile_decoder(tiny_model("llama"), max_length=48, widths=(1,), target="eager")
        eager.push_to_hub(REPOSITORY)
        wider.push_to_hub(REPOSITORY, revision="wider", commit_message="More room")
        first = hub.branches[REPOSITORY]["main"]
        wider.push_to_hub(REPOSITORY)

        found = {name: load_decoder(REPOSITORY, revision=name) for name in ("main", "wider", first)}
        assert [48, 48, 32] == [decoder.shape.max_length for decoder in found.values()]
        assert "More room" in hub.messages

    def test_in_private(self, hub, eager):
        """Every request carries the token; without it, the repository does not exist."""
        eager.push_to_hub(REPOSITORY, private=True, token="secret")
        hub.tokens.discard("secret")

        with pytest.raises(ValueError, match="must exist, and be readable with the token: got 'user/tiny'"):
            load_decoder(REPOSITORY, token=False)
        hub.tokens.clear()
        assert torch.equal(logits(eager), logits(load_decoder(REPOSITORY, token="secret")))
        assert {"secret"} == hub.tokens

    @pytest.mark.parametrize("rank", [0, 1])
    def test_of_several_processes_is_pushed_by_the_first(self, rank, hub, tiny_model, monkeypatch):
        """Each gets the address; a failure on one rank is raised on all."""
        decoder = compile_decoder(tiny_model("llama"), max_length=32, widths=(1,), target="eager")
        waited = []
        monkeypatch.setattr(lost_ranks, "_exchange", lambda ranks, error: waited.append(error))
        monkeypatch.setattr(Ranks, "broadcast", lambda self, content: content or b"from the first")
        decoder.ranks = Ranks(degree=2, rank=rank, group="none")
        address = decoder.push_to_hub(REPOSITORY)

        assert (rank == 0) == (REPOSITORY in hub.branches)
        assert (rank == 1) == ("from the first" == address)
        assert [None, None] == waited

    def test_with_quantised_weights(self, hub, tiny_model):
        """Stored quantised, and the card names the format."""
        decoder = compile_decoder(
            tiny_model("llama"), max_length=32, widths=(1, 2), target="eager", weights="int8"
        )
        decoder.push_to_hub(REPOSITORY)

        assert torch.equal(logits(decoder), logits(load_decoder(REPOSITORY)))
        assert b"| linear layers | int8 |" in hub.files(REPOSITORY)["README.md"]

    def test_of_a_path_is_of_a_folder(self, hub, eager, tmp_path, monkeypatch):
        """A local folder takes precedence over a repository of the same name."""
        monkeypatch.chdir(tmp_path)
        eager.save(REPOSITORY)

        assert torch.equal(logits(eager), logits(load_decoder(REPOSITORY)))
        assert not hub.tokens


class TestFiles:
    """Which files are uploaded and downloaded."""

    def test_stale_programs_are_deleted(self, hub, eager, compiled):
        """A decoder of other widths has other programs."""
        compiled.push_to_hub(REPOSITORY)
        before = [name for name in hub.files(REPOSITORY) if name.startswith("programs/")]
        eager.push_to_hub(REPOSITORY)

        assert ["programs/width_2.zip"] == before
        assert not [name for name in hub.files(REPOSITORY) if name.startswith("programs/")]

    def test_stale_weights_are_deleted(self, hub, eager, tiny_model):
        """Plain weights by quantised ones and the reverse, each in one commit."""
        quantised = compile_decoder(
            tiny_model("llama"), max_length=32, widths=(1,), target="eager", weights="int8"
        )
        held = []
        for decoder in (eager, quantised, eager):
            before = len(hub.commits)
            decoder.push_to_hub(REPOSITORY)
            held.append({name for name in hub.files(REPOSITORY) if name.endswith(".safetensors")})
            # One more to create the repository.
            assert len(hub.commits) - before == (2 if len(held) == 1 else 1)

        plain, other = {"model.safetensors"}, {"weights.safetensors"}
        assert [plain, other, plain] == [names - {"constants.safetensors"} for names in held]
        assert torch.equal(logits(eager), logits(load_decoder(REPOSITORY)))

    def test_other_files_are_kept(self, hub, eager):
        """An edited card, and files of other names."""
        written = {"notes.txt": b"mine", "README.md": b"my card"}
        hub.commit(REPOSITORY, written)
        eager.push_to_hub(REPOSITORY)

        assert written == {name: hub.files(REPOSITORY)[name] for name in written}

    def test_only_listed_files_are_downloaded(self, hub, eager):
        """No other file that transformers might read."""
        eager.push_to_hub(REPOSITORY)
        hub.commit(REPOSITORY, {**hub.files(REPOSITORY), "adapter_config.json": b"{}", "x.bin": b""})
        folder = download_decoder(REPOSITORY)

        expected = {"decoder.json", *Manifest.read(folder).files}
        assert expected == {*hub.downloads}
        assert expected == {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}

    def test_the_card_says_what_the_decoder_is(self, hub, eager):
        """How to load it, its shape and the versions that it needs."""
        eager.push_to_hub(REPOSITORY)
        card = hub.files(REPOSITORY)["README.md"].decode()

        assert "README.md" not in Manifest.read(download_decoder(REPOSITORY)).files
        assert card.startswith("---\nlibrary_name: decodekit\n")
        assert 'load_decoder("user/tiny")' in card
        for row in (
            "| architecture | LlamaForCausalLM |",
            "| positions | 32 |",
            "| widths | 1, 2 |",
            "| dtype | float32 |",
            f"| torch | {torch.__version__} |",
        ):
            assert row in card

    def test_a_changed_file_is_refused(self, hub, eager):
        """As in a folder."""
        eager.push_to_hub(REPOSITORY)
        files = hub.files(REPOSITORY)
        hub.commit(REPOSITORY, {**files, "config.json": files["config.json"] + b" "})

        with pytest.raises(ValueError, match=r"as they were saved: got a changed .*config\.json"):
            load_decoder(REPOSITORY)

    def test_a_missing_file_is_refused(self, hub, eager):
        """The error names it."""
        eager.push_to_hub(REPOSITORY)
        files = hub.files(REPOSITORY)
        hub.commit(REPOSITORY, {name: files[name] for name in files if name != "model.safetensors"})

        with pytest.raises(ValueError, match=r"got no .*model\.safetensors"):
            load_decoder(REPOSITORY)

    def test_another_torch_is_refused(self, hub, compiled, tmp_path):
        """Checked before anything is loaded."""
        compiled.push_to_hub(REPOSITORY)
        change(hub, tmp_path, {}, versions={"torch": "1.0"})

        with pytest.raises(ValueError, match=r"by the torch that compiled them, 1\.0"):
            load_decoder(REPOSITORY)


class TestTrust:
    """Which native code is run, and which compiled again."""

    @pytest.fixture
    def no_compiler(self, monkeypatch):
        """Compiling fails."""
        monkeypatch.setattr("decodekit.neuron_backend.targets.cpu.aoti.compile_package", None)

    @pytest.mark.usefixtures("no_compiler")
    def test_programs_made_here_are_run(self, hub, compiled):
        """The hub changes nothing about trust."""
        compiled.push_to_hub(REPOSITORY)
        loaded = load_decoder(REPOSITORY)

        assert not loaded.compiled
        assert torch.equal(logits(compiled), logits(loaded))

    @pytest.mark.slow
    @pytest.mark.usefixtures("elsewhere")
    def test_programs_of_others_are_compiled_again(self, hub, compiled, tmp_path):
        """The downloaded program is not run, even if its hash matches decoder.json."""
        compiled.push_to_hub(REPOSITORY)
        change(hub, tmp_path, {"programs/width_2.zip": b"not to be run"})
        loaded = load_decoder(REPOSITORY)

        assert loaded.compiled
        torch.testing.assert_close(logits(compiled), logits(loaded), atol=1e-5, rtol=1e-5)

    @pytest.mark.usefixtures("elsewhere", "no_compiler")
    def test_can_be_given(self, hub, compiled):
        """trust_programs runs the repository's programs."""
        compiled.push_to_hub(REPOSITORY)
        loaded = load_decoder(REPOSITORY, trust_programs=True)

        assert not loaded.compiled
        assert torch.equal(logits(compiled), logits(loaded))


class TestOffline:
    """Loading with HF_HUB_OFFLINE."""

    def test_the_cache_serves(self, hub, eager, offline):
        """By branch and by commit, without a request."""
        eager.push_to_hub(REPOSITORY)
        load_decoder(REPOSITORY)
        commit = hub.branches[REPOSITORY]["main"]
        hub.downloads.clear()
        hub.tokens.clear()
        offline()

        for revision in (None, "main", commit):
            assert torch.equal(logits(eager), logits(load_decoder(REPOSITORY, revision=revision)))
        assert not hub.downloads
        assert not hub.tokens

    def test_a_missing_download_is_an_error(self, hub, eager, offline):
        """The message names the repository and HF_HUB_OFFLINE."""
        eager.push_to_hub(REPOSITORY)
        offline()

        with pytest.raises(FileNotFoundError, match=r"HF_HUB_OFFLINE is set.*user/tiny, revision main"):
            load_decoder(REPOSITORY)

    def test_half_a_download_is_not_a_decoder(self, hub, eager, offline):
        """A missing file is an error."""
        eager.push_to_hub(REPOSITORY)
        (download_decoder(REPOSITORY) / "model.safetensors").unlink()
        offline()

        with pytest.raises((FileNotFoundError, ValueError), match=r"no whole user/tiny|got no "):
            load_decoder(REPOSITORY)

    def test_an_unreachable_hub_is_as_offline(self, hub, eager, monkeypatch):
        """The cache serves, and a repository that is not in it is an error."""
        eager.push_to_hub(REPOSITORY)
        load_decoder(REPOSITORY)
        nowhere = "http://127.0.0.1:9"
        # The client retries with growing pauses.
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, nowhere)
        monkeypatch.setattr(constants, "ENDPOINT", nowhere)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

        assert torch.equal(logits(eager), logits(load_decoder(REPOSITORY)))
        with pytest.raises(FileNotFoundError, match="the hub cannot be reached"):
            load_decoder("user/else")


class TestRefusals:
    """Names and repositories that are no decoder on the hub."""

    def test_no_such_repository(self, hub):
        """And no folder of that name."""
        with pytest.raises(ValueError, match="got 'user/missing'; no folder is called so either"):
            load_decoder("user/missing")

    def test_no_such_revision(self, hub, eager):
        """The error names it."""
        eager.push_to_hub(REPOSITORY)

        with pytest.raises(ValueError, match="'revision' must be one of user/tiny's: got 'v9'"):
            load_decoder(REPOSITORY, revision="v9")

    def test_a_model_is_no_decoder(self, hub):
        """And its weights are not downloaded."""
        hub.commit("user/model", {"config.json": b"{}", "model.safetensors": b"much"})

        with pytest.raises(ValueError, match=r"saved decoder with a decoder\.json: got 'user/model'"):
            load_decoder("user/model")
        assert not hub.downloads

    def test_another_decoder_json_is_no_decoder(self, hub):
        """A decoder.json of another tool."""
        hub.commit("user/model", {"decoder.json": b"{}", "model.safetensors": b"much"})

        with pytest.raises(ValueError, match="must be of format"):
            load_decoder("user/model")
        assert ["decoder.json"] == hub.downloads

    @pytest.mark.parametrize("name", ["tiny", "a/b/c", "", "../tiny", "user/ti ny", None])
    def test_a_name_that_no_repository_has(self, name, eager):
        """Nothing is saved or uploaded."""
        with pytest.raises(ValueError, match="'repo_id' must be of the form 'user/name': got"):
            eager.push_to_hub(name)

    @pytest.mark.parametrize("option", [{"revision": "main"}, {"token": "secret"}])
    def test_a_folder_has_no_revision(self, option, eager, tmp_path):
        """Options that would be ignored are refused."""
        eager.save(tmp_path / "decoder")

        with pytest.raises(ValueError, match=f"'{next(iter(option))}' must be None for a folder"):
            load_decoder(tmp_path / "decoder", **option)

    def test_what_is_a_repository(self, tmp_path, monkeypatch):
        """Strings of two parts that name no existing path."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "here/is").mkdir(parents=True)

        assert is_repository("user/tiny-1.5_b")
        for name in ("tiny", "./tiny", "/user/tiny", "here/is", "a/b/c", tmp_path / "a", "a/"):
            assert not is_repository(name)
