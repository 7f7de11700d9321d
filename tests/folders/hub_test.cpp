// Models by name: what is downloaded into the cache, how a transfer goes on after it was cut off,
// and what happens to a model that does not exist, may not be read, or is hostile. The Hub is a
// server in this process.

#include "folders/hub/hub.h"

#include <sys/wait.h>

#include <cstdlib>
#include <optional>

#include "folders/hub/hub_gguf.h"
#include "support/fake_hub.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::FakeHub;

class HubTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HF_HUB_OFFLINE", "BRRR_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE",
                             "http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "BRRR_FAULT"})
      set(name, "");
    set("HF_HOME", (folder_ / "hf").string());
    set("HF_ENDPOINT", hub_.url());
    std::string weights;
    for (int i = 0; i < 20'000; ++i) weights += static_cast<char>(i * i % 251);
    hub_.files = {{"config.json", {"{}"}},
                  {"tokenizer.json", {"{\"of\": \"a tokenizer\"}"}},
                  {"1_Pooling/config.json", {"{\"pooling\": true}"}},
                  {"model.safetensors", {weights, true}},
                  {"README.md", {"# Read me"}},
                  {"pytorch_model.bin", {weights, true}},
                  {"onnx/model.onnx", {weights, true}}};
  }
  void TearDown() override {
    for (const auto& [name, value] : saved_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    const char* old = std::getenv(name.c_str());
    saved_.try_emplace(name, old ? std::optional<std::string>(old) : std::nullopt);
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  static fs::path find(const std::string& name = "some-lab/tiny") {
    return model_from_hub(*parse_hub_name(name));
  }
  fs::path repository() const { return folder_ / "hf" / "hub" / "models--some-lab--tiny"; }
  std::string weights() const { return hub_.files.at("model.safetensors").content; }
  fs::path blob() const { return repository() / "blobs" / sha256_hex(weights()); }
  fs::path partial() const { return blob().string() + ".incomplete"; }
  /// What a failure may leave: nothing that looks like a file of the model.
  void expect_no_model() const {
    EXPECT_FALSE(fs::exists(blob()));
    EXPECT_FALSE(fs::exists(repository() / "snapshots"));
    EXPECT_FALSE(fs::exists(repository() / "refs"));
  }

  test::TempFolder folder_;
  FakeHub hub_;
  std::map<std::string, std::optional<std::string>> saved_;
};

TEST_F(HubTest, NamesAreOwnerNameAndRevision) {
  EXPECT_EQ(parse_hub_name("gpt2-xl")->id, "openai-community/gpt2-xl");
  EXPECT_EQ(parse_hub_name("Qwen/Qwen2.5-0.5B")->text(), "Qwen/Qwen2.5-0.5B");
  EXPECT_EQ(parse_hub_name("a/b@refs/pr/1")->revision, "refs/pr/1");
  EXPECT_FALSE(parse_hub_name("bert")->can_be_downloaded());
  for (const char* no : {"", "/a", "a/", "a/b/c", "../a", "a/..", "a b/c", "a/b@", "a/b@../c",
                         "a/b@/c", "a--b/c", "runs/x y", "a/b?c", "a/%2e", "./a"})
    EXPECT_FALSE(parse_hub_name(no)) << no;
}

TEST_F(HubTest, ANameMayHaveATypeOfGgufFiles) {
  EXPECT_EQ(parse_hub_name("a/b:q4_k_m")->gguf_type, "q4_k_m");
  EXPECT_EQ(parse_hub_name("a/b@v1:Q8_0")->revision, "v1");
  EXPECT_EQ(parse_hub_name("a/b@v1:Q8_0")->text(), "a/b@v1:Q8_0");
  for (const char* no : {"gpt2:Q8_0", "a/b:", "a/b:x/y", "a/b:../c", ":Q8_0"})
    EXPECT_FALSE(parse_hub_name(no)) << no;
}

TEST_F(HubTest, TheFileOfATypeIsFound) {
  using Files = std::vector<std::string>;
  const Files files = {"README.md",
                       "mmproj-model-f16.gguf",
                       "Tiny-1B-Q4_K_M.gguf",
                       "Tiny-1B-UD-Q4_K_M.gguf",
                       "tiny-1b.q8_0.gguf",
                       "BF16/Tiny-1B-BF16-00002-of-00002.gguf",
                       "BF16/Tiny-1B-BF16-00001-of-00002.gguf"};
  EXPECT_EQ(gguf_files_of(files, ""), Files{"Tiny-1B-Q4_K_M.gguf"});
  EXPECT_EQ(gguf_files_of(files, "q4_k_m"), Files{"Tiny-1B-Q4_K_M.gguf"});
  EXPECT_EQ(gguf_files_of(files, "UD-Q4_K_M"), Files{"Tiny-1B-UD-Q4_K_M.gguf"});
  EXPECT_EQ(gguf_files_of(files, "Q8_0"), Files{"tiny-1b.q8_0.gguf"});
  EXPECT_EQ(gguf_files_of(files, "bf16"), (Files{"BF16/Tiny-1B-BF16-00001-of-00002.gguf",
                                                 "BF16/Tiny-1B-BF16-00002-of-00002.gguf"}));
  EXPECT_EQ(gguf_files_of(files, "K_M"), Files{"Tiny-1B-Q4_K_M.gguf"});
  EXPECT_EQ(gguf_files_of(files, "Q2_K"), Files{});
  EXPECT_EQ(gguf_files_of(files, "4_K_M"), Files{});
  EXPECT_EQ(gguf_types_in(files), (Files{"BF16", "Q4_K_M", "Q8_0"}));
  EXPECT_EQ(gguf_files_of({"only.gguf"}, ""), Files{"only.gguf"});
  EXPECT_EQ(gguf_files_of({"a-Q8_0.gguf", "a-Q4_0.gguf"}, ""), Files{});
}

TEST_F(HubTest, AGgufFileIsDownloadedAlone) {
  hub_.files["tiny-q4_k_m.gguf"] = {"GGUF of four bits", true};
  hub_.files["tiny-Q8_0.gguf"] = {"GGUF of eight bits", true};
  const fs::path snapshot = repository() / "snapshots" / hub_.commit;
  EXPECT_EQ(find("some-lab/tiny:Q4_K_M"), snapshot / "tiny-q4_k_m.gguf");
  EXPECT_EQ(read_file(snapshot / "tiny-q4_k_m.gguf"), "GGUF of four bits");
  EXPECT_FALSE(fs::exists(snapshot / "model.safetensors"));
  EXPECT_EQ(find("some-lab/tiny:q8_0"), snapshot / "tiny-Q8_0.gguf");
  EXPECT_USER_ERROR(find("some-lab/tiny:Q2_K"),
                    "some-lab/tiny has no GGUF file of the type Q2_K: name another, as "
                    "some-lab/tiny:Q4_K_M; it has Q4_K_M, Q8_0");
  EXPECT_EQ(find(), snapshot / "tiny-q4_k_m.gguf") << "what the cache has comes first";
  fs::remove_all(folder_ / "hf");
  EXPECT_EQ(find(), snapshot) << "weights that other programs train come before GGUF files";
  EXPECT_EQ(find("some-lab/tiny:Q8_0"), snapshot / "tiny-Q8_0.gguf");
  EXPECT_EQ(find(), snapshot);
  hub_.stop();
  EXPECT_EQ(find("some-lab/tiny:Q8_0"), snapshot / "tiny-Q8_0.gguf");
  set("HF_HUB_OFFLINE", "1");
  EXPECT_USER_ERROR(find("some-lab/tiny:Q2_K"), "lacks the GGUF file Q2_K; HF_HUB_OFFLINE is set");
}

TEST_F(HubTest, AModelOfGgufFilesAloneHasAUsualType) {
  hub_.files = {{"README.md", {"# Read me"}},
                {"Tiny-Q4_K_M.gguf", {"GGUF four", true}},
                {"Tiny-Q8_0.gguf", {"GGUF eight", true}}};
  const fs::path snapshot = repository() / "snapshots" / hub_.commit;
  EXPECT_EQ(find("some-lab/tiny:Q8_0"), snapshot / "Tiny-Q8_0.gguf");
  set("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(find(), snapshot / "Tiny-Q8_0.gguf") << "the only one that is here";
  set("HF_HUB_OFFLINE", "");
  EXPECT_EQ(find(), snapshot / "Tiny-Q4_K_M.gguf");
  hub_.stop();
  EXPECT_EQ(find(), snapshot / "Tiny-Q4_K_M.gguf");
}

TEST_F(HubTest, SeveralTypesWithoutTheUsualOneAreListed) {
  hub_.files = {{"t-Q4_0.gguf", {"GGUF four", true}}, {"t-Q8_0.gguf", {"GGUF eight", true}}};
  EXPECT_USER_ERROR(find(),
                    "some-lab/tiny has GGUF files of several types and none is Q4_K_M: name one, "
                    "as some-lab/tiny:Q4_0; it has Q4_0, Q8_0");
  hub_.files = {{"config.json", {"{}"}}, {"model.safetensors", {"weights", true}}};
  EXPECT_USER_ERROR(find("some-lab/tiny:Q4_0"), "some-lab/tiny has no GGUF files; leave :Q4_0 out");
}

TEST_F(HubTest, AllPartsOfASplitFileAreFetched) {
  hub_.files = {{"q8/t-Q8_0-00001-of-00002.gguf", {"GGUF one", true}},
                {"q8/t-Q8_0-00002-of-00002.gguf", {"GGUF two", true}}};
  const fs::path folder = repository() / "snapshots" / hub_.commit / "q8";
  EXPECT_EQ(find("some-lab/tiny:Q8_0"), folder / "t-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(read_file(folder / "t-Q8_0-00002-of-00002.gguf"), "GGUF two");
  fs::remove(folder / "t-Q8_0-00002-of-00002.gguf");
  EXPECT_EQ(find("some-lab/tiny:Q8_0"), folder / "t-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(read_file(folder / "t-Q8_0-00002-of-00002.gguf"), "GGUF two");
}

TEST_F(HubTest, ADownloadIsAFolderOfPythonsCache) {
  const fs::path model = find();
  EXPECT_EQ(model, repository() / "snapshots" / hub_.commit);
  EXPECT_EQ(read_file(repository() / "refs" / "main"), hub_.commit);
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(model)) files += !entry.is_directory();
  EXPECT_EQ(files, 4u) << "files that no model needs were downloaded";
  for (const char* name :
       {"config.json", "tokenizer.json", "1_Pooling/config.json", "model.safetensors"}) {
    EXPECT_EQ(read_file(model / name), hub_.files.at(name).content) << name;
    EXPECT_TRUE(fs::is_symlink(model / name)) << name;
    EXPECT_EQ(fs::canonical(model / name).parent_path(), fs::canonical(repository() / "blobs"));
  }
  EXPECT_EQ(fs::read_symlink(model / "model.safetensors"), "../../blobs/" + sha256_hex(weights()));
  // From now on the cache is enough, with the commit, too.
  hub_.stop();
  EXPECT_EQ(find(), model);
  EXPECT_EQ(find("some-lab/tiny@" + hub_.commit), model);
  set("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(find(), model);
  fs::remove(model / "tokenizer.json");
  EXPECT_EQ(find(), model) << "a model without a tokenizer has its uses";
  fs::remove(model / "model.safetensors");
  EXPECT_USER_ERROR(find(), "lacks model.safetensors; HF_HUB_OFFLINE is set");
}

TEST_F(HubTest, WhatTheCacheLacksIsDownloadedAlone) {
  const fs::path model = find();
  fs::remove(model / "tokenizer.json");
  fs::remove(fs::path(repository() / "blobs") /
             git_blob_name(hub_.files.at("tokenizer.json").content));
  const uint64_t before = hub_.sent();
  EXPECT_EQ(find(), model);
  EXPECT_EQ(hub_.sent() - before, hub_.files.at("tokenizer.json").content.size());
  EXPECT_EQ(read_file(model / "tokenizer.json"), hub_.files.at("tokenizer.json").content);
}

TEST_F(HubTest, ADownloadThatWasCutOffGoesOn) {
  for (const uint64_t cut : {0, 1, 7, 3999, 19'999}) {
    fs::remove_all(folder_ / "hf");
    hub_.cut = cut;
    if (5 * cut < weights().size()) {
      EXPECT_USER_ERROR(find(), "model.safetensors of some-lab/tiny was cut off after");
      expect_no_model();
      EXPECT_EQ(fs::file_size(partial()), 5 * cut);
      hub_.cut = {};
    }
    const uint64_t before = hub_.sent();
    const fs::path model = find();
    EXPECT_EQ(read_file(model / "model.safetensors"), weights()) << cut;
    EXPECT_FALSE(fs::exists(partial()));
    if (!hub_.cut) {
      EXPECT_EQ(hub_.sent() - before, weights().size() - 5 * cut);
    }
  }
}

TEST_F(HubTest, AServerWithoutRangesIsAskedFromTheBeginning) {
  hub_.cut = 1000;
  EXPECT_USER_ERROR(find(), "was cut off after 5000 of 20000 bytes");
  hub_.cut = {};
  hub_.ignores_range = true;
  EXPECT_EQ(read_file(find() / "model.safetensors"), weights());
}

TEST_F(HubTest, OtherContentIsNotKept) {
  FakeHub::File& file = hub_.files["model.safetensors"];
  file.sha256 = std::string(64, 'e');
  EXPECT_USER_ERROR(find(), "expected " + std::string(64, 'e'));
  EXPECT_TRUE(fs::is_empty(repository() / "blobs") ||
              !fs::exists(repository() / "blobs" / (std::string(64, 'e') + ".incomplete")));
  expect_no_model();
  // What was kept of an earlier attempt and does not fit is fetched anew.
  file.sha256 = "";
  fs::create_directories(partial().parent_path());
  write_file_atomically(partial(), std::string(500, 'x'));
  EXPECT_EQ(read_file(find() / "model.safetensors"), weights());
}

// The login page of a network answers with status 200 in place of the file, once: one that is
// longer than the file, as long, and shorter. JSON and other files are alike.
TEST_F(HubTest, ALoginPageIsNotKeptAsASmallFile) {
  const std::string page = "<!DOCTYPE html><html><body>Please accept the terms</body></html>";
  hub_.files.erase("1_Pooling/config.json");
  hub_.files["merges.txt"];
  const struct {
    const char* name;
    size_t bytes;
    std::string error;
  } cases[] = {
      {"config.json", page.size() - 20, "config.json of some-lab/tiny is longer than the "},
      {"merges.txt", page.size(), "has the SHA-1 of Git " + git_blob_name(page)},
      {"tokenizer.json", page.size() + 20, ""}};
  for (const auto& c : cases) {
    FakeHub::File& file = hub_.files[c.name];
    file.content = "{\"k\": \"" + std::string(c.bytes - 9, 'v') + "\"}";
    ASSERT_EQ(file.content.size(), c.bytes);
    file.instead = {page};
    if (!c.error.empty()) {
      EXPECT_USER_ERROR(find(), c.error);
    }
  }
  // Behind a page that is shorter comes a second attempt, from the beginning.
  const fs::path model = find();
  for (const auto& c : cases)
    EXPECT_EQ(read_file(model / c.name), hub_.files.at(c.name).content) << c.name;
  for (const FakeHub::Request& r : hub_.requests()) EXPECT_EQ(r.range.value_or(0), 0u) << r.path;
}

TEST_F(HubTest, ContentWithoutADigestMustBeJsonWhereItsNameSaysSo) {
  FakeHub::File& file = hub_.files["config.json"];
  file.etag = "5f-abc";  // of another kind of server
  file.instead = {"<>"};
  EXPECT_USER_ERROR(find(), "sent something else than JSON for some-lab/tiny: config.json");
  expect_no_model();
  EXPECT_EQ(read_file(find() / "config.json"), "{}");
}

TEST_F(HubTest, AnAnswerThatNamesNoCommitIsNotTheHubs) {
  hub_.names_commit = false;
  EXPECT_USER_ERROR(find(), "X-Repo-Commit is missing");
  expect_no_model();
}

// Programs that did not check left such files.
TEST_F(HubTest, AWebPageInTheCacheIsDownloadedAgain) {
  const fs::path model = find();
  for (const char* name : {"config.json", "tokenizer.json"}) {
    write_file_atomically(fs::canonical(model / name), "\n <HTML><body>Log in</body></HTML>");
    EXPECT_EQ(find(), model);
    EXPECT_EQ(read_file(model / name), hub_.files.at(name).content) << name;
  }
  // What somebody changed by hand stays.
  write_file_atomically(fs::canonical(model / "config.json"), "{\"changed\": 1}");
  EXPECT_EQ(read_file(find() / "config.json"), "{\"changed\": 1}");
}

TEST_F(HubTest, AFileMustHaveItsSize) {
  hub_.files["model.safetensors"].claimed = 20'001;
  EXPECT_USER_ERROR(find(), "cut off after 20000 of 20001 bytes");
  hub_.files["model.safetensors"].claimed = 19'000;
  fs::remove_all(folder_ / "hf");
  EXPECT_USER_ERROR(find(), "is longer than the 19000 bytes");
  hub_.files["model.safetensors"].claimed = uint64_t{1} << 60;
  fs::remove_all(folder_ / "hf");
  EXPECT_USER_ERROR(find(), "cannot download some-lab/tiny: 1153 PB are needed, and ");
  expect_no_model();
}

TEST_F(HubTest, AFullDiskLeavesWhatGoesOnLater) {
  set("BRRR_FAULT", "hub.write=enospc");
  EXPECT_USER_ERROR(find(), "No space left on device; free some space and run again");
  expect_no_model();
  set("BRRR_FAULT", "");
  EXPECT_EQ(read_file(find() / "model.safetensors"), weights());
}

TEST_F(HubTest, TheTokenGoesToTheHubAlone) {
  FakeHub storage;
  storage.files = hub_.files;
  hub_.storage = storage.url();
  hub_.token = "hf_secret";
  set("HF_TOKEN", "hf_secret");
  EXPECT_EQ(read_file(find() / "model.safetensors"), weights());
  for (const FakeHub::Request& r : hub_.requests()) EXPECT_EQ(r.token, "hf_secret") << r.path;
  EXPECT_FALSE(storage.requests().empty());
  for (const FakeHub::Request& r : storage.requests()) EXPECT_EQ(r.token, "") << r.path;
  // The file that signing in writes.
  set("HF_TOKEN", "");
  fs::remove_all(folder_ / "hf");
  fs::create_directories(folder_ / "hf");
  write_file_atomically(folder_ / "hf" / "token", "hf_secret\n");
  EXPECT_EQ(read_file(find() / "model.safetensors"), weights());
  for (const char* endpoint : {"http://example.com", "http://127.0.0.1.example.com"}) {
    set("HF_ENDPOINT", endpoint);
    EXPECT_USER_ERROR(find("some-lab/other"), "everybody on the way could read the token");
  }
}

TEST_F(HubTest, WhoMayNotReadIsToldWhatToDo) {
  const std::string url = hub_.url();
  EXPECT_USER_ERROR(find("some-lab/tinny"), "no folder some-lab/tinny, and no model of that name");
  EXPECT_USER_ERROR(find("some-lab/tiny@v2"), "some-lab/tiny has no revision v2");
  hub_.token = "hf_secret";
  EXPECT_USER_ERROR(find(), "for a private model, set HF_TOKEN");
  set("HF_TOKEN", "hf_other");
  const std::string refused = test::user_error_of([] { find(); });
  EXPECT_NE(refused.find("whether the token in HF_TOKEN may read it"), std::string::npos)
      << refused;
  EXPECT_EQ(refused.find("hf_other"), std::string::npos);
  hub_.refusal_code = "";
  EXPECT_USER_ERROR(find(), url + " refuses the token in HF_TOKEN: make another one at");
  hub_.refusal = 403;
  hub_.refusal_code = "GatedRepo";
  EXPECT_USER_ERROR(find(), "is a gated model: ask for access at " + url + "/some-lab/tiny with");
  set("HF_TOKEN", "");
  EXPECT_USER_ERROR(find(), "and set HF_TOKEN to a token of your account");
  hub_.refusal = 429;
  hub_.refusal_code = "";
  EXPECT_USER_ERROR(find(), "too many requests; wait a few minutes, or set HF_TOKEN");
  hub_.refusal = 503;
  EXPECT_USER_ERROR(find(), "answers with status 503; try again later");
  set("HF_TOKEN", "two words");
  EXPECT_USER_ERROR(find(), "HF_TOKEN holds characters that no access token has");
  set("HF_TOKEN", "");
  set("HF_ENDPOINT", "huggingface.co");
  EXPECT_USER_ERROR(find(), "HF_ENDPOINT is 'huggingface.co'; expected an address");
  set("HF_ENDPOINT", url);
  hub_.stop();
  EXPECT_USER_ERROR(find(), "there is no answer from " + url);
  set("HF_HUB_OFFLINE", "True");
  EXPECT_USER_ERROR(find(), "HF_HUB_OFFLINE is set, so nothing was downloaded");
  EXPECT_TRUE(find("bert").empty());
  EXPECT_TRUE(find("runs/gpt2-3").empty());
  expect_no_model();
}

TEST_F(HubTest, HostileListsAreRefused) {
  for (const char* name : {"../../../evil.json", "/etc/passwd", "a/../config.json", "a//b", "",
                           "a/.", "a\\\\b", "a\\nb"}) {
    hub_.more_names = {name};
    EXPECT_USER_ERROR(find(), "a path that leads elsewhere: nothing was downloaded");
  }
  hub_.more_names = {};
  hub_.commit = "../../../../elsewhere";
  EXPECT_USER_ERROR(find(), "expected what the Hugging Face Hub says of a model");
  hub_.commit = std::string(40, 'c');
  hub_.files["model.safetensors"].sha256 = "../../../evil";
  EXPECT_USER_ERROR(find(), "by the ETag '../../../evil'");
  hub_.files["model.safetensors"].sha256 = "";
  hub_.storage = "file:///etc";
  EXPECT_USER_ERROR(find(), "a redirect to no address");
  expect_no_model();
}

TEST_F(HubTest, ShardsAreThoseOfTheIndex) {
  hub_.files.erase("model.safetensors");
  hub_.files["model-00001-of-00002.safetensors"] = {"one", true};
  hub_.files["second.safetensors"] = {"two", true};
  hub_.files["consolidated.safetensors"] = {"all", true};
  hub_.files["model.safetensors.index.json"] = {
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "second.safetensors"}})"};
  const fs::path model = find();
  EXPECT_EQ(read_file(model / "second.safetensors"), "two");
  EXPECT_FALSE(fs::exists(model / "consolidated.safetensors"));
  fs::remove(fs::canonical(model / "second.safetensors"));
  EXPECT_EQ(read_file(find() / "second.safetensors"), "two");
}

TEST_F(HubTest, ModelsInOtherFormsAreRefused) {
  hub_.files.erase("model.safetensors");
  EXPECT_USER_ERROR(find(), "hf download some-lab/tiny --local-dir tiny && python3 -c");
  hub_.files.erase("pytorch_model.bin");
  EXPECT_USER_ERROR(find(), "no model.safetensors that Brrr reads; it has onnx/model.onnx");
  hub_.files.erase("config.json");
  EXPECT_USER_ERROR(find(), "some-lab/tiny has no config.json");
}

TEST_F(HubTest, TwoProcessesAtOnceDownloadOnce) {
  hub_.files["model.safetensors"].content.resize(2'000'000, 'w');
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        ::_exit(read_file(find() / "model.safetensors") == weights() ? 0 : 1);
      } catch (...) {
        ::_exit(2);
      }
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_LT(hub_.sent(), weights().size() + 10'000);
}

// Everybody on a machine sees the command lines of its programs.
TEST_F(HubTest, TheTokenIsOnNoCommandLine) {
  const std::string path = std::getenv("PATH");
  const fs::path spy = folder_ / "curl", seen = folder_ / "seen";
  write_file_atomically(spy, "#!/bin/sh\necho \"$@\" >> " + seen.string() + "\nPATH='" + path +
                                 "' exec curl \"$@\"\n");
  fs::permissions(spy, fs::perms::owner_all);
  set("PATH", folder_.path().string() + ":" + path);
  hub_.token = "hf_secret";
  set("HF_TOKEN", "hf_secret");
  EXPECT_EQ(read_file(find() / "model.safetensors"), weights());
  EXPECT_NE(read_file(seen).find("--config -"), std::string::npos);
  EXPECT_EQ(read_file(seen).find("hf_secret"), std::string::npos);
}

TEST_F(HubTest, CurlIsNeeded) {
  set("PATH", folder_.path().string());
  EXPECT_USER_ERROR(find(), "curl is not installed; install it (apt install curl)");
}

}  // namespace
}  // namespace brrr::io
