/* The bytes of $file. */
#include "model.h"

_Alignas(16) const unsigned char hwnas_model[] = {
$model_bytes
};
const size_t hwnas_model_size = sizeof hwnas_model;
