#pragma once
// A vector of small trivial values that needs no memory of its own for up to N of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace brrr {

template <typename T, size_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  InlineVector() = default;
  template <typename Iterator>
  InlineVector(Iterator first, Iterator last) {
    reserve(static_cast<size_t>(std::distance(first, last)));
    for (; first != last; ++first) push_back(T(*first));
  }
  InlineVector(const InlineVector& other) : InlineVector(other.begin(), other.end()) {}
  InlineVector(InlineVector&& other) noexcept
      : few_{}, many_(std::move(other.many_)), size_(other.size_), room_(other.room_) {
    std::copy_n(other.few_, N, few_);
    other.size_ = 0;
    other.room_ = N;
  }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) *this = InlineVector(other);
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    std::copy_n(other.few_, N, few_);
    many_ = std::move(other.many_);
    size_ = std::exchange(other.size_, 0);
    room_ = std::exchange(other.room_, N);
    return *this;
  }
  ~InlineVector() = default;

  size_t size() const { return size_; }
  T* begin() { return room_ == N ? few_ : many_.get(); }
  T* end() { return begin() + size_; }
  const T* begin() const { return room_ == N ? few_ : many_.get(); }
  const T* end() const { return begin() + size_; }
  T& operator[](size_t i) { return begin()[i]; }
  const T& operator[](size_t i) const { return begin()[i]; }
  operator std::span<const T>() const { return {begin(), size_}; }

  void push_back(T value) {
    reserve(size_ + size_t{1});
    begin()[size_++] = value;
  }
  void insert(size_t at, T value) {
    push_back(value);
    std::rotate(begin() + at, end() - 1, end());
  }
  void erase(size_t at) {
    std::copy(begin() + at + 1, end(), begin() + at);
    --size_;
  }
  bool operator==(const InlineVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  void reserve(size_t wanted) {
    if (wanted <= room_) return;
    const size_t room = std::max<size_t>(wanted, size_t{2} * room_);
    auto moved = std::make_unique<T[]>(room);
    std::copy(begin(), end(), moved.get());
    many_ = std::move(moved);
    room_ = static_cast<uint32_t>(room);
  }

  T few_[N] = {};
  std::unique_ptr<T[]> many_;  // where the room is more than N
  uint32_t size_ = 0, room_ = N;
};

}  // namespace brrr
