#include "quaver/model.h"
