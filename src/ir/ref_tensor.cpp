#include "ir/ref_tensor.h"

#include "base/errors.h"

namespace brrr {

RefTensor::RefTensor(Type of_type) : type(std::move(of_type)) {
  visit([&](auto& elements) { elements.resize(static_cast<size_t>(type.shape.elements())); });
}

RefTensor::RefTensor(Type of_type, std::vector<double> values) : type(std::move(of_type)) {
  visit([&]<typename T>(std::vector<T>& elements) {
    if constexpr (std::is_same_v<T, double>)
      elements = std::move(values);
    else
      for (const double x : values)
        elements.push_back(static_cast<T>(integer_from_double(type.dtype, x)));
  });
}

size_t RefTensor::size() const {
  return visit([](const auto& elements) { return elements.size(); });
}

void RefTensor::copy_elements(const RefTensor& from) {
  BRRR_CHECK(type.dtype == from.type.dtype, "elements of {} for {}", from.type.str(), type.str());
  data = from.data;
  signed_data = from.signed_data;
  unsigned_data = from.unsigned_data;
}

uint64_t RefTensor::bits(size_t i) const {
  return visit([&]<typename T>(const std::vector<T>& elements) {
    if constexpr (!std::is_same_v<T, double>) return static_cast<uint64_t>(elements[i]);
    return static_cast<uint64_t>(static_cast<int64_t>(elements[i]));
  });
}

void RefTensor::set_bits(size_t i, uint64_t bits) {
  const DType dtype = type.dtype;
  visit([&]<typename T>(std::vector<T>& elements) {
    if constexpr (!std::is_same_v<T, double>)
      elements[i] = static_cast<T>(bits);
    else if (dtype == DType::boolean)
      elements[i] = bits != 0;
    else
      elements[i] = double_from_integer(dtype, wrapped_to(dtype, bits));
  });
}

double RefTensor::number(size_t i) const {
  return visit([&](const auto& elements) { return static_cast<double>(elements[i]); });
}

void RefTensor::set_number(size_t i, double value) {
  if (is_integer(type.dtype))
    set_bits(i, integer_from_double(type.dtype, value));
  else
    data[i] = value;
}

RefTensor read_tensor(const Type& type, const void* from) {
  RefTensor t(type);
  const auto n = static_cast<int64_t>(t.size());
  for (int64_t i = 0; i < n; ++i)
    if (is_float(type.dtype))
      t.data[static_cast<size_t>(i)] = load_as_double(type.dtype, from, i);
    else
      t.set_bits(static_cast<size_t>(i), load_integer(type.dtype, from, i));
  return t;
}

void write_tensor(const RefTensor& tensor, void* to) {
  const DType dtype = tensor.type.dtype;
  for (size_t i = 0; i < tensor.size(); ++i)
    if (is_float(dtype))
      store_from_double(dtype, to, static_cast<int64_t>(i), tensor.data[i]);
    else
      store_integer(dtype, to, static_cast<int64_t>(i), tensor.bits(i));
}

}  // namespace brrr
