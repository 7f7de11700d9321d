#include "folders/hub/hub_client.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/cache.h"
#include "base/encoding/ascii.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/system_text.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr int kMostRedirects = 10;
constexpr size_t kLargestListing = size_t{64} << 20;
constexpr size_t kMostFiles = 100'000;

/// The part of a URL, or of a path in one, that stands for itself.
std::string percent_encoded(std::string_view text, std::string_view also = "") {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || std::string_view("-_.~").find(c) != text.npos ||
                       also.find(c) != also.npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

/// "https://host:port" of a URL.
std::string origin_of(const std::string& url) {
  const size_t host = url.find("://");
  if (host == std::string::npos) return "";
  return ascii_lowercase(url.substr(0, url.find_first_of("/?#", host + 3)));
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

/// Whether what is sent to an origin stays on this machine.
bool is_local(const std::string& origin) {
  std::string host = origin.substr(origin.find("://") + 3);
  if (host.starts_with("[::1]")) return true;
  host = host.substr(0, host.find(':'));
  return host == "localhost" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos);
}

/// A path of parts that are names.
bool is_inside(const std::string& file) {
  if (file.empty() || file.size() > 4096) return false;
  for (size_t begin = 0; begin <= file.size();) {
    const size_t end = std::min(file.find('/', begin), file.size());
    const std::string part = file.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    begin = end + 1;
  }
  return std::all_of(file.begin(), file.end(),
                     [](unsigned char c) { return c >= ' ' && c != 0x7f && c != '\\'; });
}

/// An ETag as the cache has it: without quotes and the mark of a weak one.
std::string plain_etag(std::string etag) {
  if (etag.starts_with("W/")) etag = etag.substr(2);
  std::erase(etag, '"');
  return etag;
}

bool is_file_name(std::string_view etag) {
  const auto may_stand = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !etag.empty() && etag.size() <= 128 && etag.front() != '.' &&
         std::all_of(etag.begin(), etag.end(), may_stand);
}

std::optional<uint64_t> count_in(const std::string& text) {
  const auto value = system_text::number(text);
  if (!value || *value < 0) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

}  // namespace

bool HubFile::has_sha256() const {
  return etag.size() == 64 && etag.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool HubFile::has_git_name() const { return is_commit(etag); }

HubClient::HubClient(HubName name)
    : name_(std::move(name)),
      endpoint_(env::get("HF_ENDPOINT").value_or("https://huggingface.co")) {
  while (endpoint_.ends_with('/')) endpoint_.pop_back();
  const std::string origin = origin_of(endpoint_);
  if (!(origin.starts_with("http://") || origin.starts_with("https://")) ||
      origin.ends_with("://") || origin.find('@') != std::string::npos || !is_printable(endpoint_))
    usage_error("HF_ENDPOINT is {}; expected an address such as https://huggingface.co",
                in_quotes(endpoint_));
  if (const auto token = env::get("HF_TOKEN")) {
    token_ = system_text::trimmed(*token);
    token_source_ = "HF_TOKEN";
  } else {
    const fs::path file = hugging_face_folder() / "token";
    const std::string text = system_text::read_or_empty(file);
    token_ = system_text::trimmed(text);
    token_source_ = file.string();
  }
  if (!is_printable(token_))
    usage_error("{} holds characters that no access token has; copy the token again",
                token_source_);
  if (!token_.empty() && origin.starts_with("http://") && !is_local(origin))
    usage_error(
        "HF_ENDPOINT is {}: without https, everybody on the way could read the token of {}; use "
        "https, or remove the token",
        endpoint_, token_source_);
}

HttpAnswer HubClient::ask(HttpRequest request, const TakeBody& take,
                          const std::function<bool(const HttpAnswer&)>& enough) const {
  const std::string home = origin_of(endpoint_);
  for (int redirects = 0;; ++redirects) {
    const std::string origin = origin_of(request.url);
    request.token = origin == home ? token_ : "";
    HttpAnswer answer = http_request(request, [&](const HttpAnswer& a, std::string_view piece) {
      if (take && a.status / 100 == 2) take(a, piece);
    });
    if (answer.status / 100 != 3 || (enough && enough(answer))) return answer;
    const auto refuse = [&](const std::string& what) {
      user_error("cannot download {}: {} {}; try again later, or set HF_ENDPOINT to another server",
                 name_.text(), origin, what);
    };
    if (redirects == kMostRedirects) refuse("sends requests in a circle");
    std::string next = answer.header("location");
    if (next.starts_with("//"))
      next = origin.substr(0, origin.find("//")) + next;
    else if (next.starts_with("/"))
      next = origin + next;
    const std::string there = origin_of(next);
    if (!is_printable(next) || !(there.starts_with("https://") || there.starts_with("http://")))
      refuse("answers with a redirect to no address");
    if (origin.starts_with("https://") && !there.starts_with("https://"))
      refuse("answers with a redirect to an address without https");
    request.url = next;
  }
}

void HubClient::check(const HttpAnswer& answer, const std::string& what) const {
  if (answer.status == 0)
    user_error(
        "cannot download {}: there is no answer from {} ({}); check the connection, or name a "
        "folder that holds a model",
        name_.text(), endpoint_, answer.failure);
  if (answer.status / 100 == 2) return;
  const std::string code = answer.header("x-error-code");
  const bool is_refused = answer.status == 401 || answer.status == 403;
  if (code == "GatedRepo" || (answer.status == 403 && code.empty()))
    user_error("{} is a gated model: ask for access at {}/{} {}", name_.id, endpoint_, name_.id,
               token_.empty()
                   ? "and set HF_TOKEN to a token of your account"
                   : "with the account that the token in " + token_source_ + " belongs to");
  if (code == "RevisionNotFound")
    user_error("{} has no revision {}: check the spelling, see {}/{}/tree/main", name_.id,
               name_.revision, endpoint_, name_.id);
  if (is_refused && !token_.empty() && code != "RepoNotFound")
    user_error("{} refuses the token in {}: make another one at {}/settings/tokens", endpoint_,
               token_source_, endpoint_);
  if (answer.status == 404 && !what.empty())
    user_error("cannot download {} of {}: {} does not have it; try again later", what, name_.text(),
               endpoint_);
  if (answer.status == 404 || is_refused)
    user_error("there is no folder {}, and no model of that name at {}: check the spelling{}",
               name_.id, endpoint_,
               token_.empty() ? "; for a private model, set HF_TOKEN"
                              : ", and whether the token in " + token_source_ + " may read it");
  if (answer.status == 429)
    user_error("cannot download {}: {} has had too many requests; wait a few minutes{}",
               name_.text(), endpoint_, token_.empty() ? ", or set HF_TOKEN" : "");
  user_error("cannot download {}: {} answers with status {}; try again later", name_.text(),
             endpoint_, answer.status);
}

std::string HubClient::url_of(const std::string& commit, const std::string& file) const {
  return fmt::format("{}/{}/resolve/{}/{}", endpoint_, name_.id, commit,
                     percent_encoded(file, "/"));
}

HubListing HubClient::list() const {
  const std::string url = fmt::format("{}/api/models/{}/revision/{}", endpoint_, name_.id,
                                      percent_encoded(name_.revision));
  std::string body;
  const HttpAnswer answer = ask({.url = url}, [&](const HttpAnswer&, std::string_view piece) {
    body += piece;
    if (body.size() > kLargestListing)
      user_error("the list of files from {} has more than 64 MiB; is HF_ENDPOINT right?", url);
  });
  check(answer, "");
  if (!answer.failure.empty())
    user_error("cannot download {}: the list of its files was cut off ({}); try again",
               name_.text(), answer.failure);
  const auto expect = [&](bool holds) {
    if (!holds)
      user_error(
          "{}: expected what the Hugging Face Hub says of a model, with \"sha\" and \"siblings\"; "
          "is HF_ENDPOINT right?",
          url);
  };
  const Json json = parse_json(body, url);
  expect(json.is_object());
  const Json sha = json.value("sha", Json()), siblings = json.value("siblings", Json());
  expect(sha.is_string() && is_commit(sha.get<std::string>()) && siblings.is_array() &&
         siblings.size() <= kMostFiles);
  HubListing listing{sha.get<std::string>(), {}};
  for (const Json& sibling : siblings) {
    const Json file = sibling.is_object() ? sibling.value("rfilename", Json()) : Json();
    expect(file.is_string());
    listing.files.push_back(file.get<std::string>());
    if (!is_inside(listing.files.back()))
      user_error("{} lists the file {}, a path that leads elsewhere: nothing was downloaded", url,
                 in_quotes(listing.files.back()));
  }
  return listing;
}

HubFile HubClient::describe(const std::string& commit, const std::string& file) const {
  HubFile out{file, "", {}};
  std::string commit_said;
  // The first answer with a name for the content counts: where redirects lead to may call it
  // otherwise.
  const auto read = [&](const HttpAnswer& answer) {
    const bool is_last = answer.status / 100 == 2;
    if (commit_said.empty()) commit_said = answer.header("x-repo-commit");
    if (const std::string linked = answer.header("x-linked-etag"); out.etag.empty())
      out.etag = plain_etag(linked.empty() && is_last ? answer.header("etag") : linked);
    if (!out.bytes) out.bytes = count_in(answer.header("x-linked-size"));
    if (!out.bytes && is_last) out.bytes = count_in(answer.header("content-length"));
    return !out.etag.empty() && out.bytes.has_value();
  };
  HttpAnswer answer = ask({.url = url_of(commit, file), .head = true}, {}, read);
  if (answer.status / 100 != 3) check(answer, file);
  read(answer);
  if (commit_said != commit)
    user_error(
        "{} does not answer as the Hugging Face Hub does (X-Repo-Commit is {}): is HF_ENDPOINT "
        "right? A proxy or a login page of the network may have answered instead",
        url_of(commit, file), commit_said.empty() ? "missing" : in_quotes(commit_said));
  if (!is_file_name(out.etag))
    user_error("{} names the content of {} by the ETag {}; is HF_ENDPOINT right?",
               url_of(commit, file), file, in_quotes(out.etag));
  return out;
}

std::string HubClient::get(
    const std::string& commit, const HubFile& file, uint64_t offset,
    const std::function<void(uint64_t begin, std::string_view)>& take) const {
  const HttpAnswer answer =
      ask({.url = url_of(commit, file.name), .offset = offset},
          [&](const HttpAnswer& a, std::string_view piece) {
            const bool goes_on =
                a.status == 206 &&
                a.header("content-range").starts_with(fmt::format("bytes {}-", offset));
            if (a.status == 206 && !goes_on)
              user_error(
                  "cannot download {} of {}: {} sends another part than was asked for; "
                  "try again later",
                  file.name, name_.text(), endpoint_);
            take(goes_on ? offset : 0, piece);
          });
  // There is nothing from that offset on.
  if (answer.status == 416) return "";
  if (answer.status != 0) check(answer, file.name);
  return answer.failure;
}

}  // namespace brrr::io
