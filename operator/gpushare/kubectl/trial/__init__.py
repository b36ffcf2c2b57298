"""`kubectl gpushare trial`: does sharing help a Job or Pod of the user's? Its copies run as pods of a share."""
